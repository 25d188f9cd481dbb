"""Two nodes keep the connections of a complete reduce, and nobody is blamed if that does not work.

The nodes are real except for the control plane. Both can be dialled.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from p2ptrain.dataplane import PeerSocket, RingKey
from p2ptrain.errors import PeerUnreachable, ReduceAborted
from p2ptrain.ids import PeerId, RunId
from p2ptrain.node.connecting.opening import Opening
from p2ptrain.node.reduce import second_hello
from p2ptrain.node.reduce.kept_links import KeptLinks, kept_links
from p2ptrain.node.reduce.reduce_links import ReduceLinks, connect
from p2ptrain.node.state.timing import ReduceTiming
from p2ptrain.ring import Reduce, ReduceRequest
from p2ptrain.ring.source import Difference
from p2ptrain.ring.wire import Header, Kind
from tests.node.cable import some_rigs
from tests.node.rig import Rig, settled

STREAMS = 2
DEADLINE_S = 120.0


@dataclass
class End:
    """One of two neighbours, and its open connections."""

    rig: Rig
    kept: KeptLinks | None = None
    links: ReduceLinks = field(default_factory=ReduceLinks)

    @property
    def peer(self) -> PeerId:
        return self.rig.context.me

    @property
    def connections(self) -> set[int]:
        return {id(each) for each in self.links.open.values()}

    @property
    def suspects(self) -> list[object]:
        return [record.get("suspects") for record in self.rig.diary.records if "suspects" in record]


@dataclass
class Pair:
    ends: tuple[End, End]

    def request(self, end: End, step: int) -> ReduceRequest:
        """Return the reduce of outer step `step`. The order of the two changes with each step."""
        context = self.ends[0].rig.context
        peers = tuple(it.peer for it in self.ends)[:: 1 if step % 2 else -1]
        return ReduceRequest(
            run=RunId(context.ledger.snapshot.line),
            step=step,
            attempt=0,
            peers=peers,
            me=peers.index(end.peer),
            weights=(1, 1),
            numel=1 << 12,
            codec=context.outer_step(0).update.codec,
            streams=STREAMS,
        )

    async def connect(self, step: int) -> None:
        """Let both ends connect for this outer step."""
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for end in self.ends:
                    end.links = ReduceLinks(end.kept)
                    request = self.request(end, step)
                    nursery.start_soon(connect, end.rig.context, request, end.links)

    def work(self, end: End, step: int) -> Reduce:
        """Return the reduce over the connections of `end`."""
        request = self.request(end, step)
        theta, local = (np.full(request.numel, value, np.float32) for value in (1.0, 0.5))
        payload = bytearray(request.codec.encoded_bytes(request.numel))
        source = Difference(theta, local)
        return Reduce(request, end.links.links(request), source, payload, grace_s=0.1)

    async def reduce(self, step: int) -> None:
        """Let both ends connect and average. Nothing is kept yet."""
        await self.connect(step)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for end in self.ends:
                    nursery.start_soon(trio.to_thread.run_sync, self.work(end, step).run)

    def keep(self) -> None:
        for end in self.ends:
            end.links.keep()


@asynccontextmanager
async def pair(tmp_path: Path, *, reuse_s: float = 30.0) -> AsyncIterator[Pair]:
    """Yield two members that can dial each other. On a slow machine, too, an answer comes within
    the usual `reuse_s`."""
    reduce = ReduceTiming(dial_s=30.0, reuse_s=reuse_s)
    async with some_rigs(tmp_path, forwarders=2) as rigs, AsyncExitStack() as stack:
        ends = End(rigs[1]), End(rigs[2])
        for end in ends:
            end.rig.set_chain(line=ends[0].rig.context.ledger.snapshot.line)
            end.rig.wait_for(reduce=reduce, edge_s=60.0)
            end.kept = await stack.enter_async_context(kept_links(end.rig.context))
        yield Pair(ends)
        for end in ends:
            end.links.close()


def kept_by(end: End) -> KeptLinks:
    assert end.kept is not None
    return end.kept


async def test_next_reduce_uses_the_same_connections_in_either_order(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        before = [ann.connections, bob.connections]
        for step in (2, 3):
            both.keep()
            assert [end.connections for end in both.ends] == [set(), set()]
            await both.reduce(step)
            assert [ann.connections, bob.connections] == before
        reused = [len(end.rig.said("edge-reused")) for end in both.ends]
        assert reused == [1, 1], "the first peer of each roster offers the connections"
        assert kept_by(ann).peers == kept_by(bob).peers == frozenset()


async def test_failed_attempt_closes_all_connections_at_both_ends(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        before = ann.connections
        both.keep()
        kept_by(ann).attempt_failed(both.request(ann, 2))
        await settled(lambda: not kept_by(bob).peers)
        await both.reduce(step=3)
        assert not ann.connections & before
        assert ann.rig.said("edge-reused") == bob.rig.said("edge-reused") == []


async def test_peer_that_is_not_a_member_any_more_loses_its_connections(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        both.keep()
        assert kept_by(ann).peers == {bob.peer}
        ann.rig.set_chain(since={ann.peer: 0})
        ann.rig.context.changes.notify_all()
        await settled(lambda: not kept_by(ann).peers and not kept_by(bob).peers)
        reasons = [it["reason"] for it in ann.rig.said("edge-closed")]
        assert reasons == ["it is not a member any more"]


async def test_node_that_leaves_closes_its_connections(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        both.keep()
        ann.rig.context.state.leaving = True
        ann.rig.context.changes.notify_all()
        await settled(lambda: not kept_by(ann).peers and not kept_by(bob).peers)


async def test_dead_connection_is_replaced_and_nobody_is_blamed(tmp_path: Path) -> None:
    """The connection is open, but the other end never answers, as behind a NAT that forgot it."""
    async with pair(tmp_path, reuse_s=0.2) as both:
        ann, bob = both.ends
        await both.reduce(step=2)
        before, silent = bob.connections, ann.links
        bob.links.keep()
        ann.kept = None
        await both.reduce(step=4)
        assert not bob.connections & before
        (failed,) = bob.rig.said("edge-not-reused")
        assert failed["peer"] == ann.peer
        assert ann.suspects == bob.suspects == []
        silent.close()


async def test_frame_of_the_last_reduce_ends_a_kept_connection(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        bob.links.keep()
        request = both.request(ann, 1)
        stale = Header(Kind.ABORT, 0, 0, 0, 0, request.step, request.attempt, request.tag())
        ann.links.open[bob.peer, 0].send_all(stale.encode())
        await settled(lambda: not kept_by(bob).peers)
        (closed,) = bob.rig.said("edge-closed")
        assert "more than the limit" in str(closed["reason"])
        assert bob.suspects == []


async def test_hello_that_arrives_as_our_own_reduce_begins_ends_one_of_them(
    tmp_path: Path,
) -> None:
    """The first bytes arrive in the moment in which this node offers the connection itself. Trio
    draws which of the two tasks runs first, so the test tries both orders.
    """
    async with pair(tmp_path, reuse_s=0.2) as both:
        ann, bob = both.ends
        for step in range(2, 12, 2):
            await both.reduce(step)
            request = both.request(bob, step + 2)
            connection = bob.links.open[ann.peer, 0]
            assert isinstance(connection, PeerSocket)
            arrived = os.dup(connection.fileno())
            bob.links.keep()
            await wait_all_tasks_blocked()
            opening = Opening(ann.peer, "", {0: {}}, math.inf, lambda _, it: it.close())
            ann.links.open[bob.peer, 0].send_all(b"\0")  # A part of the hello.
            await trio.lowlevel.wait_readable(arrived)
            await kept_by(bob).reuse(opening, request, is_opener=True)
            os.close(arrived)
            ann.links.close()
            await settled(lambda: not kept_by(bob).peers)
        assert bob.suspects == []


@pytest.mark.parametrize(
    ("change", "why"),
    [({"step": 1}, "failed once"), ({"stream": 1}, "another stream"), ({"run": "ef" * 32}, "line")],
)
async def test_hello_for_another_reduce_is_refused(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        bob.links.keep()
        line = RunId(ann.rig.context.ledger.snapshot.line)
        key = replace(RingKey(line, 2, 0, 0, ann.peer), **change)  # type: ignore[arg-type]
        connection = ann.links.open[bob.peer, 0]
        assert isinstance(connection, PeerSocket)
        with pytest.raises(PeerUnreachable, match=why):
            await trio.to_thread.run_sync(second_hello.offer, connection, key, 30.0)
        await settled(lambda: not kept_by(bob).peers)


async def test_frame_of_the_last_reduce_is_refused_on_a_reused_connection(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        ann, bob = both.ends
        await both.reduce(step=1)
        old = both.request(ann, 1)
        both.keep()
        await both.connect(step=3)
        stale = Header(Kind.DONE, 0, 0, 0, 0, old.step, old.attempt, old.tag())
        ann.links.open[bob.peer, 0].send_all(stale.encode())
        with pytest.raises(ReduceAborted, match="a frame is for step 1") as caught:
            await trio.to_thread.run_sync(both.work(bob, 3).run)
        assert caught.value.suspects == (ann.peer,)
