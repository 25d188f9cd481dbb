"""A node makes bases (states of the ledger) for newcomers without blocking its event loop, and
limits how many it makes."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, SnapshotRef
from p2ptrain.ledger.history.base import Base, Checkpoint, decode_base
from p2ptrain.ledger.history.pruning import base_after
from p2ptrain.node.joining.base_server import (
    PEER_BURST,
    SITE_BURST,
    WAITING_MAX,
    BaseCache,
    BaseMaker,
    BaseRateLimits,
    Replay,
    encode_named,
    serve_bases,
)
from p2ptrain.peers.protocol_names import BASE_PROTOCOL
from p2ptrain.testing.ledgers import digest
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Rig, opening, rig, settled, somebody

Ask = Callable[..., Awaitable[bytes]]

ALONE: dict[str, Any] = {"steps": 40, "rules": policy(participants_min=1)}


class Node:
    """A node that serves bases. Its chain certifies a snapshot in each of `steps` outer steps, and
    `named` lists the checkpoints at which there is a base."""

    def __init__(
        self,
        r: Rig,
        steps: int = 6,
        *,
        replay: Replay = base_after,
        waiting_max: int = WAITING_MAX,
        allowed: BaseRateLimits | None = None,
    ) -> None:
        for step in range(steps):
            part = Participant(r.context.me, 16, 1)
            r.decide(opening(r.context.ledger.snapshot, part))
            snapshot = (SnapshotRef(step, digest(f"s{step}")), digest("any"))
            r.decide(Commit(step, 0, digest("u"), *snapshot))
        entries = [each.entry for each in r.context.ledger.core.chain]
        self.named = [Checkpoint(e.height, e.digest) for e in entries if e.height % 2 == 0]
        maker = BaseMaker(r.context, replay=replay, waiting_max=waiting_max)
        serve_bases(r.context, maker, allowed)
        self._handler = r.network.handlers[BASE_PROTOCOL]

    async def asked(self, named: Checkpoint, peer: PeerId | None = None) -> bytes:
        """Request the base at `named` as `peer`, by default as a peer that has not asked before.
        Return the answer."""
        return await self._handler(peer or next(PEERS), encode_named(named))


def _peers() -> Iterator[PeerId]:
    number = 1000
    while True:
        number += 1
        yield somebody(number).peer


PEERS = _peers()


class Replays:
    """Replays the chain as a node does, and counts the replays."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *arguments: object) -> Base | None:
        self.count += 1
        return base_after(*arguments)  # type: ignore[arg-type]


async def test_base_at_each_checkpoint_is_made_only_once(tmp_path: Path) -> None:
    replays = Replays()
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r, replay=replays)
        for _ in range(5):
            for named in node.named:
                assert decode_base(await node.asked(named)).checkpoint == named
        assert replays.count == len(node.named) == 6


async def test_chain_is_replayed_outside_the_event_loop(tmp_path: Path) -> None:
    """Here the replay waits until the event loop has run. A replay inside the event loop would wait
    forever."""
    loop_ran = threading.Event()

    def slow(*arguments: object) -> Base | None:
        assert loop_ran.wait(60)
        return base_after(*arguments)  # type: ignore[arg-type]

    async with rig(tmp_path, **ALONE) as r, trio.open_nursery() as nursery:
        node = Node(r, replay=slow)
        nursery.start_soon(node.asked, node.named[0])
        await trio.testing.wait_all_tasks_blocked()
        loop_ran.set()


async def test_bases_are_made_even_if_all_shared_threads_are_busy(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        shared = trio.to_thread.current_default_thread_limiter()
        holders = [object() for _ in range(int(shared.total_tokens))]
        for holder in holders:
            shared.acquire_on_behalf_of_nowait(holder)
        try:
            with trio.fail_after(60):
                assert await node.asked(node.named[0])
        finally:
            for holder in holders:
                shared.release_on_behalf_of(holder)


async def test_base_requested_by_several_peers_at_once_is_made_once(tmp_path: Path) -> None:
    replays = Replays()
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r, replay=replays)
        async with trio.open_nursery() as nursery:
            for _ in range(WAITING_MAX):
                nursery.start_soon(node.asked, node.named[0])
        assert replays.count == 1


async def test_number_of_requests_that_wait_for_a_replay_is_bounded(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def slow(*arguments: object) -> Base | None:
        assert goes_on.wait(60)
        return base_after(*arguments)  # type: ignore[arg-type]

    async with rig(tmp_path, **ALONE) as r, trio.open_nursery() as nursery:
        node = Node(r, replay=slow, waiting_max=2)
        for named in node.named[:3]:
            nursery.start_soon(node.asked, named)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TryLater):
            await node.asked(node.named[3])
        goes_on.set()


async def test_requests_of_one_peer_are_rate_limited(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        for _ in range(PEER_BURST):
            assert await node.asked(node.named[0], ANN.peer)
        with pytest.raises(TryLater):
            await node.asked(node.named[0], ANN.peer)
        assert await node.asked(node.named[0]), "a different peer is answered"


@pytest.mark.parametrize("admission", ["open", "allowlist"])
async def test_peers_at_one_address_share_a_rate_limit_if_the_run_is_open(
    tmp_path: Path, admission: str
) -> None:
    """In a run with an allowlist, the organiser admits each peer, so any number of them may be at
    one address, for instance in one laboratory."""
    async with rig(tmp_path, admission=admission, **ALONE) as r:
        node = Node(r)
        many = [next(PEERS) for _ in range(SITE_BURST + 1)]
        r.network.sites = dict.fromkeys(many, "198.51.100.1")
        for peer in many[:-1]:
            assert await node.asked(node.named[0], peer)
        if admission == "open":
            with pytest.raises(TryLater):
                await node.asked(node.named[0], many[-1])
        assert await node.asked(node.named[0])


async def test_total_number_of_replayed_entries_is_rate_limited(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        clock = [1.0]
        r.surround(clock=lambda: clock[0])
        node = Node(r, allowed=BaseRateLimits(entries_burst=12))
        assert await node.asked(node.named[5])  # This replays eleven entries.
        with pytest.raises(TryLater):
            await node.asked(node.named[4])
        answer = await node.asked(node.named[5])
        assert answer, "a finished base is still served"
        clock[0] = 100.0
        assert await node.asked(node.named[4]), "after a while, replays are allowed again"


async def test_chain_longer_than_the_burst_can_still_be_replayed(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r, allowed=BaseRateLimits(entries_burst=4, bytes_burst=10))
        assert await node.asked(node.named[5])


async def test_total_bytes_of_answers_are_rate_limited(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        size = len(await Node(r).asked(Node(r, 0).named[0]))
        r.surround(clock=lambda: 1.0)
        node = Node(r, 0, allowed=BaseRateLimits(bytes_burst=2 * size))
        for _ in range(2):
            await node.asked(node.named[0])
        with pytest.raises(TryLater):
            await node.asked(node.named[0])


async def test_cancelled_request_stops_its_replay(tmp_path: Path) -> None:
    began = threading.Event()

    def endless(*arguments: object) -> None:
        stopped = arguments[-1]
        assert callable(stopped)
        began.set()
        while not stopped():
            continue

    async with rig(tmp_path, **ALONE) as r:
        node = Node(r, replay=endless)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.asked, node.named[0])
                await settled(began.is_set)
                nursery.cancel_scope.cancel()


def test_finished_bases_are_bounded_and_recently_requested_ones_stay() -> None:
    kept = BaseCache(number_max=2, bytes_max=100)
    first, second, third = (Checkpoint(n, digest(str(n))) for n in (1, 2, 3))
    kept.put(first, b"1" * 10)
    kept.put(second, b"2" * 10)
    assert kept.get(first) == b"1" * 10
    kept.put(third, b"3" * 10)
    assert list(kept.bases) == [first, third]
    kept.put(second, b"2" * 95)
    assert list(kept.bases) == [second]
