"""A node notices lost connections, dials known peers, and forgets peers that have been silent for
long. The ledger always learns which peers are down."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio
import trio.testing

from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.ledger.messages.events import PeerHeight
from p2ptrain.ledger.messages.peer_reports import PeerDown, PeerUp
from p2ptrain.net import PeerCache, PeerDisconnected
from p2ptrain.node.gossip.connections import (
    OTHERS_DIALLED_MAX,
    find_peers,
    known_peers,
    met_before,
    notice_lost_connections,
    stay_connected,
    watch_peers,
)
from p2ptrain.node.state.ledger_port import EVENTS_MAX
from tests.node.rig import (
    ANN,
    BOB,
    CAI,
    NewRig,
    PaperNetwork,
    heartbeat,
    opening,
    rig,
    settled,
    somebody,
)


async def test_member_that_never_sends_a_heartbeat_is_reported_as_down(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        context = r.context
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        assert context.peers.is_down(ANN.peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_peers, context)
            await settled(lambda: not context.peers.is_down(ANN.peer))
            nursery.cancel_scope.cancel()
        at = context.now()
        # Check the peers once for each of the following seconds, as a running node does.
        for second in range(1, 12):
            changes = context.peers.detector.changes(at + second)
            if (ANN.peer, Colour.RED) in changes:
                break
        else:
            raise AssertionError("the silent member was never reported as missing")


async def test_network_and_data_plane_are_told_who_the_members_are(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r, listener = await new_rig(tmp_path), PaperNetwork()
    r.plug(listener=listener)
    r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
    nursery.start_soon(watch_peers, r.context)
    await settled(lambda: bool(r.network.members))
    assert r.network.members == listener.members == [r.context.me, ANN.peer]


async def test_ledger_learns_of_a_lost_peer_even_if_its_queue_is_full(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context = r.context
        context.peers.detector.note_arrival(ANN.peer, context.now())
        context.peers.detector.changes(context.now())
        for _ in range(EVENTS_MAX):
            await context.ledger.submit(PeerHeight(BOB.peer, 1))
        context.peers.detector.hint_lost(ANN.peer, context.now())
        nursery.start_soon(watch_peers, context)
        await trio.testing.wait_all_tasks_blocked()
        queue = r.context.ledger.queue
        told = [await queue.next_event() for _ in range(queue.waiting + 1)]
        assert PeerDown(ANN.peer) in told
        nursery.cancel_scope.cancel()


async def test_connections_to_a_lost_peer_are_dropped_unless_they_may_be_new(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        for peer in (ANN.peer, BOB.peer):
            r.context.peers.detector.note_arrival(peer, r.context.now())
            r.context.peers.detector.hint_lost(peer, r.context.now())
        ended, r.network.events = trio.open_memory_channel[PeerDisconnected](1)
        nursery.start_soon(notice_lost_connections, r.context)
        await ended.send(PeerDisconnected(BOB.peer))
        await settled(lambda: r.context.ledger.queue.waiting == 2)
        nursery.cancel_scope.cancel()
        assert r.network.dropped == [ANN.peer]
        assert r.heard() == [PeerDown(ANN.peer), PeerDown(BOB.peer)]


async def test_all_peers_are_dialled_when_the_first_connection_is_back(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.wait_for(connection_retry_s=1000.0, others_turn_s=0.0)
    for peer in (ANN.peer, BOB.peer):
        r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
    nursery.start_soon(stay_connected, r.context)
    dialled = r.network.dialled
    await settled(lambda: len(dialled) == 2)
    r.network.peers.add(ANN.peer)
    await settled(lambda: len(dialled) == 3)
    assert dialled[2] == BOB.peer


async def test_silent_peer_is_forgotten_unless_it_is_a_member(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context = r.context
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        for peer in (ANN.peer, BOB.peer):
            context.peers.table.note_heartbeat(peer, heartbeat(r.run.id), context.now())
            context.peers.detector.note_arrival(peer, context.now())
        nursery.start_soon(partial(watch_peers, context, forget_s=-1.0))
        await settled(lambda: [record.peer for record in context.peers.table] == [ANN.peer])
        await trio.testing.wait_all_tasks_blocked()
        # The detector has forgotten that Bob was down, so the ledger must forget that too.
        assert PeerUp(BOB.peer) in r.heard()
        nursery.cancel_scope.cancel()


async def test_only_admitted_peers_are_dialled_and_not_this_node(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        for peer in (ANN.peer, CAI.peer, r.context.me):
            r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
        assert known_peers(r.context) == [ANN.peer]


async def test_peer_with_the_smaller_id_dials_first(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    for peer in (ANN.peer, BOB.peer, CAI.peer):
        r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
    nursery.start_soon(stay_connected, r.context)
    await trio.testing.wait_all_tasks_blocked()
    expected = {peer for peer in (ANN.peer, BOB.peer, CAI.peer) if r.context.me < peer}
    assert set(r.network.dialled) == expected


async def test_dials_are_bounded_and_members_do_not_wait_for_others(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """In an open run, anybody can announce addresses at which packets are dropped. Each dial of
    such an address takes seconds."""
    crowd = [somebody(number).peer for number in range(1, 3 * OTHERS_DIALLED_MAX)]
    r = await new_rig(tmp_path, allowed=[ANN.peer, *crowd])
    r.wait_for(connection_look_s=0.01, connection_retry_s=0.0, others_turn_s=0.0)
    r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
    dialled: list[PeerId] = []
    looks: list[int] = []
    over = trio.Semaphore(0)

    def connected() -> set[PeerId]:
        looks.append(len(dialled))
        return set()

    async def connect_peer(peer: PeerId, *, deadline_s: float) -> None:
        dialled.append(peer)
        await over.acquire()

    r.network.connected = connected  # type: ignore[method-assign]
    r.network.connect_peer = connect_peer  # type: ignore[method-assign]
    for peer in [*crowd, ANN.peer]:
        r.network.remember(peer, ["/ip4/192.0.2.1/tcp/1"])
    nursery.start_soon(stay_connected, r.context)
    await settled(lambda: len(dialled) == OTHERS_DIALLED_MAX + 1)
    looks.clear()
    await settled(lambda: len(looks) > 20)
    assert set(dialled) == {ANN.peer, *crowd[:OTHERS_DIALLED_MAX]}, (
        "the member and the first sixteen other peers are dialled"
    )
    assert len(dialled) == OTHERS_DIALLED_MAX + 1, "no peer is dialled twice"
    for _ in dialled:
        over.release()
    await settled(lambda: set(crowd[: 2 * OTHERS_DIALLED_MAX]) <= set(dialled))
    assert len(nursery.child_tasks) == 1


async def test_addresses_are_saved_when_the_node_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find_peers, r.context)
            await settled(r.context.home.peers.exists)
            address = f"/ip4/127.0.0.1/tcp/1/p2p/{ANN.peer}"
            r.network.remember(ANN.peer, [address])
            nursery.cancel_scope.cancel()
        assert PeerCache(r.context.home.peers).load() == {ANN.peer: [address]}


async def test_members_have_priority_in_a_full_address_file(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
    for peer in (ANN.peer, BOB.peer, CAI.peer):
        r.network.remember(peer, [f"/ip4/127.0.0.1/tcp/1/p2p/{peer}"])
    cache = PeerCache(r.context.home.peers, bytes_max=150)
    nursery.start_soon(find_peers, r.context, cache)
    await settled(r.context.home.peers.exists)
    assert set(PeerCache(r.context.home.peers).load()) == {ANN.peer}


async def test_saved_peers_are_loaded_and_a_damaged_file_is_reported(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        context, address = r.context, f"/ip4/127.0.0.1/tcp/1/p2p/{ANN.peer}"
        PeerCache(context.home.peers).save({ANN.peer: [address]})
        assert met_before(context.network, context.home, context.journal) == [address]
        assert r.network.addresses_of(ANN.peer) == [address]
        assert not r.said("peers-not-loaded")
        context.home.peers.write_bytes(b"{")
        assert met_before(context.network, context.home, context.journal) == []
        assert "was ignored" in str(r.said("peers-not-loaded"))


async def test_full_disk_prevents_only_the_saving_of_addresses(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    class Full(PeerCache):
        def save(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    r = await new_rig(tmp_path)
    nursery.start_soon(find_peers, r.context, Full(r.context.home.peers))
    await settled(lambda: bool(r.said("peers-not-saved")))
