"""Making a base for a newcomer does not block the event loop, and the number of requests is
bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, SnapshotRef
from p2ptrain.ledger.history.base import Checkpoint, decode_base
from p2ptrain.ledger.history.pruning import base_after
from p2ptrain.node.joining import base_server as module
from p2ptrain.node.joining.base_server import encode_named, serve_bases
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.protocol_names import BASE_PROTOCOL
from p2ptrain.testing.ledgers import digest
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Rig, opening, rig, settled, somebody

Ask = Callable[..., Awaitable[bytes]]

ALONE = {"steps": 40, "rules": policy(participants_min=1)}


class Node:
    """A node whose chain certifies a snapshot in each of some outer steps."""

    def __init__(self, r: Rig, steps: int = 6) -> None:
        for step in range(steps):
            part = Participant(r.parts.me, 16, 1)
            r.decide(opening(r.parts.ledger.state, part))
            snapshot = (SnapshotRef(step, digest(f"s{step}")), digest("any"))
            r.decide(Commit(step, 0, digest("u"), *snapshot))
        entries = [each.entry for each in r.parts.ledger.chain]
        self.named = [Checkpoint(e.height, e.digest) for e in entries if e.height % 2 == 0]
        serve_bases(r.parts)
        self._handler = r.network.handlers[BASE_PROTOCOL]

    async def asked(self, named: Checkpoint, peer: PeerId | None = None) -> bytes:
        """The answer to `peer`, or to a peer that has not asked before."""
        return await self._handler(peer or next(PEERS), encode_named(named))


def _peers() -> Iterator[PeerId]:
    number = 1000
    while True:
        number += 1
        yield somebody(number).peer


PEERS = _peers()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that replayed the chain."""
    threads: list[str] = []

    def spied(*arguments: object) -> object:
        threads.append(threading.current_thread().name)
        return base_after(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "base_after", spied)
    return threads


async def test_alternating_checkpoints_are_replayed_once_each(
    tmp_path: Path, replays: list[str]
) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        for _ in range(5):
            for named in node.named:
                assert decode_base(await node.asked(named)).checkpoint == named
        assert len(replays) == len(node.named) == 6


async def test_chain_is_replayed_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay waits here for the loop. A replay inside the loop would wait for ever."""
    loop_ran = threading.Event()

    def slow(*arguments: object) -> object:
        assert loop_ran.wait(60)
        return base_after(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "base_after", slow)
    async with rig(tmp_path, **ALONE) as r, trio.open_nursery() as nursery:
        node = Node(r)
        nursery.start_soon(node.asked, node.named[0])
        await trio.testing.wait_all_tasks_blocked()
        loop_ran.set()


async def test_bases_use_no_thread_that_a_vote_may_need(tmp_path: Path, replays: list[str]) -> None:
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


async def test_base_requested_by_several_peers_is_made_once(
    tmp_path: Path, replays: list[str]
) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        async with trio.open_nursery() as nursery:
            for _ in range(module.WAITING_MAX):
                nursery.start_soon(node.asked, node.named[0])
        assert len(replays) == 1


async def test_number_of_requests_waiting_for_the_thread_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slow(*arguments: object) -> object:
        assert goes_on.wait(60)
        return base_after(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "base_after", slow)
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    async with rig(tmp_path, **ALONE) as r, trio.open_nursery() as nursery:
        node = Node(r)
        for named in node.named[:3]:
            nursery.start_soon(node.asked, named)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TryLater):
            await node.asked(node.named[3])
        goes_on.set()


async def test_one_peer_gets_few_bases_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        for _ in range(module.PEER_BURST):
            assert await node.asked(node.named[0], ANN.peer)
        with pytest.raises(TryLater):
            await node.asked(node.named[0], ANN.peer)
        assert await node.asked(node.named[0]), "another peer is answered"


@pytest.mark.parametrize("admission", ["open", "allowlist"])
async def test_names_behind_one_address_share_an_allowance_if_open(
    tmp_path: Path, admission: str
) -> None:
    """If the organiser admits peers, one laboratory may have as many as it likes."""
    async with rig(tmp_path, admission=admission, **ALONE) as r:
        node = Node(r)
        many = [next(PEERS) for _ in range(module.SITE_BURST + 1)]
        r.network.sites = dict.fromkeys(many, "198.51.100.1")
        for peer in many[:-1]:
            assert await node.asked(node.named[0], peer)
        if admission == "open":
            with pytest.raises(TryLater):
                await node.asked(node.named[0], many[-1])
        assert await node.asked(node.named[0])


async def test_total_rate_of_replays_and_bytes_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES_BURST", 12)
    async with rig(tmp_path, **ALONE) as r:
        clock = [1.0]
        monkeypatch.setattr(Parts, "now", lambda _: clock[0])
        node = Node(r)
        assert await node.asked(node.named[5])  # Eleven entries come before it.
        with pytest.raises(TryLater):
            await node.asked(node.named[4])
        answer = await node.asked(node.named[5])
        assert answer, "a finished base is still given"
        clock[0] = 100.0
        assert await node.asked(node.named[4]), "the allowance comes back with time"


async def test_chain_longer_than_the_allowance_is_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES_BURST", 4)
    monkeypatch.setattr(module, "BYTES_BURST", 10)
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        assert await node.asked(node.named[5])


async def test_bytes_that_are_sent_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, **ALONE) as r:
        size = len(await Node(r).asked(Node(r, 0).named[0]))
        monkeypatch.setattr(module, "BYTES_BURST", 2 * size)
        monkeypatch.setattr(Parts, "now", lambda _: 1.0)
        node = Node(r, 0)
        for _ in range(2):
            await node.asked(node.named[0])
        with pytest.raises(TryLater):
            await node.asked(node.named[0])


async def test_replay_ends_with_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def endless(*arguments: object) -> object:
        stopped = arguments[-1]
        assert callable(stopped)
        began.set()
        while not stopped():
            continue
        return None

    monkeypatch.setattr(module, "base_after", endless)
    async with rig(tmp_path, **ALONE) as r:
        node = Node(r)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.asked, node.named[0])
                await settled(began.is_set)
                nursery.cancel_scope.cancel()


def test_finished_bases_are_bounded_and_recently_wanted_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 100)
    kept = module.BaseCache()
    first, second, third = (Checkpoint(n, digest(str(n))) for n in (1, 2, 3))
    kept.put(first, b"1" * 10)
    kept.put(second, b"2" * 10)
    assert kept.get(first) == b"1" * 10
    kept.put(third, b"3" * 10)
    assert list(kept.bases) == [first, third]
    kept.put(second, b"2" * 95)
    assert list(kept.bases) == [second]
