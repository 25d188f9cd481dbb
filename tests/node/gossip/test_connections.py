"""Peers that are missed or forgotten. The end of a connection is never a lost event."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.ledger.messages.events import PeerHeight
from p2ptrain.ledger.messages.peer_reports import PeerDown, PeerUp
from p2ptrain.net import PeerCache, book
from p2ptrain.node.assembly import EVENTS_MAX
from p2ptrain.node.gossip import connections
from p2ptrain.node.gossip.connections import (
    OTHERS_DIALLED_MAX,
    _expect_members,
    _judge,
    find_peers,
    known_peers,
    met_before,
    stay_connected,
    watch_peers,
)
from p2ptrain.node.state.context import Parts
from tests.node.rig import ANN, BOB, CAI, NewRig, heartbeat, opening, rig, settled, somebody


async def test_member_that_never_speaks_counts_as_down_after_a_while(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        parts = r.parts
        r.decide(replace(opening(parts.ledger.state), learners=(ANN.peer,)))
        assert parts.is_down(ANN.peer)
        await _expect_members(parts)
        assert not parts.is_down(ANN.peer)
        at = parts.now()
        # Time passes as for a node that looks every second.
        for second in range(1, 12):
            changes = parts.detector.changes(at + second)
            if (ANN.peer, Colour.RED) in changes:
                break
        else:
            raise AssertionError("the member was never missed")


async def test_both_planes_are_told_the_members(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    parts = r.parts
    r.decide(replace(opening(parts.ledger.state), learners=(ANN.peer,)))
    nursery.start_soon(watch_peers, parts)
    await settled(lambda: bool(r.network.members))
    assert r.network.members == [parts.me, ANN.peer]
    assert parts.listener._gate.is_member(ANN.peer)
    assert not parts.listener._gate.is_member(BOB.peer)


async def test_lost_connection_reaches_the_ledger_even_under_a_flood(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        parts = r.parts
        parts.detector.note_arrival(ANN.peer, parts.now())
        parts.detector.changes(parts.now())
        for _ in range(EVENTS_MAX):
            parts.events.send_nowait(PeerHeight(BOB.peer, 1))
        parts.detector.hint_lost(ANN.peer, parts.now())
        nursery.start_soon(_judge, parts)
        await trio.testing.wait_all_tasks_blocked()
        waiting = r.events.statistics().current_buffer_used
        told = [await r.events.receive() for _ in range(waiting + 1)]
        assert PeerDown(ANN.peer) in told


async def test_loss_of_a_peer_ends_waits_but_not_its_new_connection(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        for peer in (ANN.peer, BOB.peer):
            r.parts.detector.note_arrival(peer, r.parts.now())
            r.parts.detector.hint_lost(peer, r.parts.now())
        await _judge(r.parts, ended=BOB.peer)
        assert r.network.dropped == [ANN.peer]
        assert r.heard() == [PeerDown(ANN.peer), PeerDown(BOB.peer)]


async def test_node_that_was_cut_off_dials_all_when_one_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(connections, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(connections, "RETRY_FIRST_S", 1000.0)
    monkeypatch.setattr(connections, "OTHERS_TURN_S", 0.0)
    r = await new_rig(tmp_path)
    dialled: list[PeerId] = []

    async def connect_peer(peer: PeerId, *, deadline_s: float) -> None:
        dialled.append(peer)

    r.network.connect_peer = connect_peer  # type: ignore[attr-defined]
    for peer in (ANN.peer, BOB.peer):
        r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
    nursery.start_soon(stay_connected, r.parts)
    await settled(lambda: len(dialled) == 2)
    r.network.peers.add(ANN.peer)
    await settled(lambda: len(dialled) == 3)
    assert dialled[2] == BOB.peer


async def test_peer_unheard_for_long_is_forgotten_unless_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FORGET_S", -1.0)
    async with rig(tmp_path) as r:
        parts = r.parts
        r.decide(replace(opening(parts.ledger.state), learners=(ANN.peer,)))
        for peer in (ANN.peer, BOB.peer):
            parts.peers.note_heartbeat(peer, heartbeat(r.run.id), parts.now())
            parts.detector.note_arrival(peer, parts.now())
        await _expect_members(parts)
        assert [view.peer for view in parts.peers] == [ANN.peer]
        # The detector has forgotten that it was down, so the ledger must forget that too.
        assert r.heard() == [PeerUp(BOB.peer)]


async def test_only_admitted_peers_are_dialled_and_never_ourselves(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        for peer in (ANN.peer, CAI.peer, r.parts.me):
            r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
        assert known_peers(r.parts) == [ANN.peer]


async def test_peer_with_the_smaller_id_dials_first(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    dialled: list[PeerId] = []

    async def connect_peer(peer: PeerId, *, deadline_s: float) -> None:
        dialled.append(peer)

    r.network.connect_peer = connect_peer  # type: ignore[attr-defined]
    for peer in (ANN.peer, BOB.peer, CAI.peer):
        r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
    nursery.start_soon(stay_connected, r.parts)
    await trio.testing.wait_all_tasks_blocked()
    expected = {peer for peer in (ANN.peer, BOB.peer, CAI.peer) if r.parts.me < peer}
    assert set(dialled) == expected


async def test_number_of_dials_is_bounded_and_members_wait_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """In an open run anybody can announce addresses that drop packets: each dial takes seconds."""
    monkeypatch.setattr(connections, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(connections, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(connections, "OTHERS_TURN_S", 0.0)
    crowd = [somebody(number).peer for number in range(1, 3 * OTHERS_DIALLED_MAX)]
    r = await new_rig(tmp_path, allowed=[ANN.peer, *crowd])
    r.decide(replace(opening(r.parts.ledger.state), learners=(ANN.peer,)))
    dialled: list[PeerId] = []
    looks: list[int] = []
    over = trio.Semaphore(0)

    def look(parts: Parts) -> list[PeerId]:
        looks.append(len(dialled))
        return known_peers(parts)

    async def connect_peer(peer: PeerId, *, deadline_s: float) -> None:
        dialled.append(peer)
        await over.acquire()

    monkeypatch.setattr(connections, "known_peers", look)
    r.network.connect_peer = connect_peer  # type: ignore[attr-defined]
    for peer in [*crowd, ANN.peer]:
        r.network.remember(peer, ["/ip4/192.0.2.1/tcp/1"])
    nursery.start_soon(stay_connected, r.parts)
    await settled(lambda: len(dialled) == OTHERS_DIALLED_MAX + 1)
    looks.clear()
    await settled(lambda: len(looks) > 20)
    assert set(dialled) == {ANN.peer, *crowd[:OTHERS_DIALLED_MAX]}, "a member, and the first others"
    assert len(dialled) == OTHERS_DIALLED_MAX + 1, "each of them once"
    for _ in dialled:
        over.release()
    await settled(lambda: set(crowd[: 2 * OTHERS_DIALLED_MAX]) <= set(dialled))
    assert len(nursery.child_tasks) == 1


async def test_addresses_are_saved_when_the_node_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find_peers, r.parts)
            await settled(r.parts.home.peers.exists)
            address = f"/ip4/127.0.0.1/tcp/1/p2p/{ANN.peer}"
            r.network.remember(ANN.peer, [address])
            nursery.cancel_scope.cancel()
        assert PeerCache(r.parts.home.peers).load() == {ANN.peer: [address]}


async def test_members_have_priority_in_a_full_address_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(book, "FILE_BYTES_MAX", 150)
    r = await new_rig(tmp_path)
    r.decide(replace(opening(r.parts.ledger.state), learners=(ANN.peer,)))
    for peer in (ANN.peer, BOB.peer, CAI.peer):
        r.network.remember(peer, [f"/ip4/127.0.0.1/tcp/1/p2p/{peer}"])
    nursery.start_soon(find_peers, r.parts)
    await settled(r.parts.home.peers.exists)
    assert set(PeerCache(r.parts.home.peers).load()) == {ANN.peer}


async def test_met_peers_are_remembered_and_a_broken_file_is_reported(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        parts, address = r.parts, f"/ip4/127.0.0.1/tcp/1/p2p/{ANN.peer}"
        PeerCache(parts.home.peers).save({ANN.peer: [address]})
        assert met_before(parts.network, parts.home, parts.journal) == [address]
        assert r.network.addresses_of(ANN.peer) == [address]
        assert not r.said("peers-not-loaded")
        parts.home.peers.write_bytes(b"{")
        assert met_before(parts.network, parts.home, parts.journal) == []
        assert "was ignored" in str(r.said("peers-not-loaded"))


async def test_full_disk_costs_only_the_saved_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    def full(
        cache: PeerCache, addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember
    ) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PeerCache, "save", full)
    r = await new_rig(tmp_path)
    nursery.start_soon(find_peers, r.parts)
    await settled(lambda: bool(r.said("peers-not-saved")))
