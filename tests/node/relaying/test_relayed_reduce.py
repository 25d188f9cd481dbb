"""Neighbours that can neither dial nor punch meet at relays, and a bad relay is nobody's fault.

The nodes are real except for the control plane, which is `Cable`. Punching fails at once, because
nobody sees the two ends at their addresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
import outcome
import pytest
import trio

from p2ptrain.dataplane import PeerSocket
from p2ptrain.dataplane.relaying import PURPOSE, EdgeKey, Refusal, Refused
from p2ptrain.dataplane.relaying.messages import encode_answer
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.node.connecting.ways import RELAY_S
from p2ptrain.node.gossip.reach_task import other_ways
from p2ptrain.node.outer_state.fetch import fetch_loose
from p2ptrain.node.punching.agreeing import answer_punches, keep_punching
from p2ptrain.node.reduce.reduce_links import ReduceLinks, connect, without_relayed
from p2ptrain.node.reduce.reduce_request import request_of
from p2ptrain.node.relaying.meetings import answer_meetings
from p2ptrain.node.relaying.own_relay import open_relay
from p2ptrain.node.relaying.relayed_links import relays_to, routes
from p2ptrain.node.state.relaying import EXCUSES, Relaying
from p2ptrain.peers.reach_verdict import OtherWays
from p2ptrain.ring import Difference, Reduce, ReduceRequest
from tests.dataplane.relaying.test_faults import Change, LyingRelay, flipped
from tests.node.cable import network_of, some_rigs
from tests.node.punching.test_punched_connections import HERE
from tests.node.rig import ANN, BOB, CAI, Rig, opening, settled

PUBLIC = "11.77.0.9"
SILENCE_S = 1.0
DEADLINE_S = 60.0
REDUCE_BYTES = 12 << 10
"""More bytes than the handshake and the hellos take in one direction, and fewer than the reduce."""


@dataclass
class Neighbours:
    """Two members of which each can only dial the relays."""

    ends: tuple[Rig, Rig]
    relays: tuple[Rig, ...]

    def begin(self, attempt: int) -> None:
        """Let all ledgers open this attempt between the two ends."""
        ours = [Participant(each.context.me, 16, 1) for each in self.ends]
        state = self.ends[0].context.ledger.snapshot
        learners = [it.peer for it in ours if it.peer not in state.voters]
        roster = replace(opening(state, *ours, learners=learners), attempt=attempt)
        for each in (*self.ends, *self.relays):
            each.set_chain(phase=Phase.REDUCE, roster=roster, step=0, attempt=attempt + 1)

    def request(self, end: Rig) -> ReduceRequest:
        first, roster = self.ends[0].context, end.context.ledger.snapshot.roster
        assert isinstance(roster, Roster)
        request = request_of(first, first.outer_step(0), roster)
        me = roster.peers.index(end.context.me)
        return replace(request, me=me, streams=2, silence_s=SILENCE_S, numel=1 << 16)

    def relay_of(self, attempt: int) -> Rig:
        """Return the relay that this attempt tries first."""
        ann, bob = (end.context for end in self.ends)
        ways = routes(ann, bob.me, EdgeKey(ann.run, 0, attempt, 0, ann.me))
        return next(it for it in self.relays if it.context.me == ways[0].relay.peer)


@asynccontextmanager
async def neighbours(tmp_path: Path, *, relays: int = 3) -> AsyncIterator[Neighbours]:
    async with some_rigs(tmp_path, forwarders=max(relays, 1), relays=2 if relays else 0) as rigs:
        ann, *between, bob = rigs
        async with trio.open_nursery() as nursery:
            with ExitStack() as stack:
                for each in between:
                    open_relay(stack, each.context)
                    answer_punches(each.context, gateways=frozenset)
                for end in (ann, bob):
                    end.context.own_heartbeat.dialable = False
                    end.context.own_heartbeat.reach.external_host = PUBLIC
                    end.set_chain(line=ann.context.ledger.snapshot.line)
                    for middle in between:
                        network_of(middle).hosts[end.context.me] = PUBLIC
                    answer_punches(end.context, gateways=frozenset)
                    nursery.start_soon(keep_punching, end.context)
                    nursery.start_soon(answer_meetings, end.context)
                await settled(lambda: all(it.context.peers.punching.agree for it in (ann, bob)))
                yield Neighbours((ann, bob), tuple(between))
                nursery.cancel_scope.cancel()


@contextmanager
def all_links() -> Iterator[tuple[ReduceLinks, ReduceLinks]]:
    with closing(ReduceLinks()) as one, closing(ReduceLinks()) as other:
        yield one, other


async def connected(
    found: Neighbours, links: tuple[ReduceLinks, ReduceLinks]
) -> list[ReduceAborted]:
    """Let both ends connect, and return their errors."""
    failures: list[ReduceAborted] = []

    async def one(end: Rig, edges: ReduceLinks) -> None:
        try:
            await connect(end.context, found.request(end), edges)
        except ReduceAborted as exc:
            failures.append(exc)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for end, edges in zip(found.ends, links, strict=True):
                nursery.start_soon(one, end, edges)
    return failures


async def averaged(
    found: Neighbours, links: tuple[ReduceLinks, ReduceLinks]
) -> list[ReduceAborted | None]:
    """Let both ends average over their connections. Return why each of them failed."""
    failures: list[ReduceAborted | None] = []

    async def one(end: Rig, edges: ReduceLinks) -> None:
        request = found.request(end)
        vector = np.ones(request.numel, np.float32)
        payload = bytearray(request.codec.encoded_bytes(request.numel))
        reduce = Reduce(
            request, edges.links(request), Difference(vector, vector * 0.5), payload, None
        )
        try:
            (await trio.to_thread.run_sync(outcome.capture, reduce.run)).unwrap()
            failures.append(None)
        except ReduceAborted as exc:
            failures.append(without_relayed(end.context, request, exc, edges))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for end, edges in zip(found.ends, links, strict=True):
                nursery.start_soon(one, end, edges)
    return failures


def relays_used(found: Neighbours, links: tuple[ReduceLinks, ReduceLinks]) -> set[PeerId]:
    (ann, bob), (one, other) = found.ends, links
    return {*relays_to(bob.context.me, one.open), *relays_to(ann.context.me, other.open)}


async def test_neighbours_that_cannot_punch_average_through_a_relay(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as found:
        found.begin(0)
        with all_links() as links:
            assert await connected(found, links) == []
            assert relays_used(found, links) == {found.relay_of(0).context.me}
            assert await averaged(found, links) == [None, None]
        for end, other in (found.ends, found.ends[::-1]):
            (said,) = end.said("relayed")
            assert (said["peer"], said["about"]) == (other.context.me, "reduce")
            end.set_chain(voters=tuple(end.context.ledger.snapshot.since))
            assert other_ways(end.context) == OtherWays(relayed=1, members=4)


async def test_failed_punching_is_remembered_at_both_ends(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as found:
        found.begin(0)
        with all_links() as links:
            assert await connected(found, links) == []
        for end, other in (found.ends, found.ends[::-1]):
            punching, now = end.context.peers.punching, end.context.now()
            assert punching.failed_ago_s(other.context.me, now) < DEADLINE_S
        # The relay now comes before punching, and punching is not even begun.
        found.begin(1)
        with all_links() as links, trio.fail_after(RELAY_S):
            assert await connected(found, links) == []
            assert relays_used(found, links) == {found.relay_of(1).context.me}
        for end, other in (found.ends, found.ends[::-1]):
            assert len(end.said("punch-failed")) <= 1
            punching, now = end.context.peers.punching, end.context.now()
            punching.note_reached(other.context.me, now)
            assert punching.failed_ago_s(other.context.me, now) == inf


async def test_chunks_are_fetched_through_a_relay(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as found:
        ann, bob = (end.context for end in found.ends)
        digest = bob.store.put_chunk(b"only Bob has this")
        with trio.fail_after(DEADLINE_S):
            report = await fetch_loose(ann, [digest])
        assert report.bytes_by_peer == {bob.me: 17}
        assert [said["peer"] for said in found.ends[0].said("relayed")] == [bob.me]
        await settled(lambda: ann.me in bob.peers.relaying.reached(bob.now()))


async def test_only_member_that_can_be_dialled_lets_its_source_dial_it(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Nobody else can observe its ports or relay."""
    async with neighbours(tmp_path, relays=1) as found:
        (middle,), bob = found.relays, found.ends[1].context
        sees(found.ends[1], middle)
        middle.context.own_heartbeat.dialled = True
        answer_punches(middle.context, gateways=frozenset)
        nursery.start_soon(keep_punching, middle.context)
        await settled(lambda: middle.context.peers.punching.agree is not None)
        digest = bob.store.put_chunk(b"only Bob has this")
        with trio.fail_after(DEADLINE_S):
            report = await fetch_loose(middle.context, [digest])
        assert report.bytes_by_peer == {bob.me: 17}
        assert bob.peers.relaying.reached(bob.now()) == frozenset()
        assert [said["peer"] for said in middle.said("reverse-dialled")] == [bob.me]
        nursery.cancel_scope.cancel()


def sees(end: Rig, other: Rig) -> None:
    """Let `end` see `other` where its listener is: on this machine."""
    network_of(end).hosts[other.context.me] = end.context.own_heartbeat.reach.external_host = HERE


# ── bad relays ───────────────────────────────────────────────────────────────────────────────────


class OneLyingRelay:
    """Lies to each stream of an edge. Bytes pass unchanged until the handshakes are over."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._streams: dict[object, LyingRelay] = {}

    def __call__(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        key = str(hello["key"])
        relay = self._streams.setdefault(key, LyingRelay(self._change))
        relay(connection, hello)


def killed(piece: bytes, before: int) -> bytes | None:
    return piece if before < REDUCE_BYTES else None


def stalled(piece: bytes, before: int) -> bytes:
    return piece if before < REDUCE_BYTES else b""


@pytest.mark.parametrize("change", [killed, stalled, flipped(REDUCE_BYTES)])
async def test_bad_relay_is_nobodys_fault_and_the_next_attempt_uses_another(
    tmp_path: Path, change: Change
) -> None:
    async with neighbours(tmp_path) as found:
        found.begin(0)
        bad = found.relay_of(0)
        bad.context.plane.listener.handle(PURPOSE, OneLyingRelay(change))
        with all_links() as links:
            assert await connected(found, links) == []
            assert relays_used(found, links) == {bad.context.me}
            for failure in await averaged(found, links):
                assert failure is not None
                assert failure.suspects == ()
        found.begin(1)
        with all_links() as links:
            assert await connected(found, links) == []
            (used,) = relays_used(found, links)
            assert used != bad.context.me
            assert await averaged(found, links) == [None, None]


async def test_relay_that_joins_nobody_is_replaced_in_the_next_attempt(tmp_path: Path) -> None:
    """The only relays are full. Nobody is blamed until no relay is left to try; then one of the two
    ends sits out."""
    async with neighbours(tmp_path, relays=2) as found:
        for each in found.relays:
            each.context.plane.listener.handle(PURPOSE, refuse)
        for end in found.ends:
            end.wait_for(edge_s=1.5)
        blamed = list[set[PeerId]]()
        for attempt in range(2):
            found.begin(attempt)
            with all_links() as links:
                failures = await connected(found, links)
                blamed.append({peer for each in failures for peer in each.suspects})
        names = sorted(end.context.me for end in found.ends)
        assert blamed == [set(), {names[0]}]


async def test_without_relays_one_of_the_two_sits_out(tmp_path: Path) -> None:
    async with neighbours(tmp_path, relays=0) as found:
        found.begin(0)
        with all_links() as links:
            failures = await connected(found, links)
        names = sorted(end.context.me for end in found.ends)
        assert {peer for each in failures for peer in each.suspects} == {names[0]}


def refuse(connection: PeerSocket, hello: Mapping[str, object]) -> None:
    connection.send_frame(encode_answer(Refused(Refusal.FULL, "this relay is busy")))


# ── when relays are no excuse any more ───────────────────────────────────────────────────────────


def after(*relays: PeerId) -> Relaying:
    relaying = Relaying()
    for relay in relays:
        relaying.note_fault(ANN.peer, relay)
    return relaying


@pytest.mark.parametrize(
    ("relays", "offers", "is_exhausted"),
    [
        ("", "xyz", False),
        ("xy", "xyz", False),
        ("xyx", "xyz", False),
        ("xyz", "xyz", True),
        ("xxyxz", "vwxyz", True),
        ("xy", "xy", False),
        ("xyx", "xy", True),
        ("xxx", "xy", False),
        ("xx", "x", False),
        ("xxx", "x", True),
        ("xxx", "", True),
    ],
)
def test_neighbour_is_blamed_after_failures_through_three_relays(
    relays: str, offers: str, is_exhausted: bool
) -> None:
    relaying = after(*map(PeerId, relays))
    assert relaying.is_exhausted(ANN.peer, set(map(PeerId, offers))) == is_exhausted
    assert not relaying.is_exhausted(BOB.peer, {CAI.peer})
    relaying.note_success(ANN.peer)
    assert not relaying.is_exhausted(ANN.peer, {CAI.peer})


async def test_neighbour_that_fails_behind_three_relays_is_suspected(tmp_path: Path) -> None:
    """Bob breaks the protocol in each attempt, and each attempt goes through another relay."""
    async with neighbours(tmp_path) as found:
        ann, bob = (end.context for end in found.ends)
        suspects = list[tuple[PeerId, ...]]()
        for attempt in range(EXCUSES):
            found.begin(attempt)
            request = found.request(found.ends[0])
            with all_links() as links:
                assert await connected(found, links) == []
                noticed = ReduceAborted(0, attempt, (bob.me,), "it broke the protocol")
                suspects.append(without_relayed(ann, request, noticed, links[0]).suspects)
        assert suspects == [(), (), (bob.me,)]


async def test_report_of_a_neighbour_behind_a_relay_is_not_changed(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as found:
        found.begin(0)
        ann, bob = (end.context for end in found.ends)
        with all_links() as links:
            assert await connected(found, links) == []
            heard = ReduceAborted(0, 0, (bob.me,), "a neighbour said so", heard=True)
            assert without_relayed(ann, found.request(found.ends[0]), heard, links[0]) is heard
        assert ann.peers.relaying.faults == {}
