"""A node learns from several members whether its router shows each peer another port."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.dataplane import Credentials, Endpoint, ExternalAddress, Listener, PeerSocket
from p2ptrain.dataplane.observing import ObserveServer
from p2ptrain.encoding import pack
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.gossip.reachability import changes_ports as reported
from p2ptrain.node.punching.port_kind import LOOK_S, changes_ports, watch_port_kind, witnesses
from p2ptrain.node.state.punching import EXPERIENCE_S, Punching
from p2ptrain.peers.heartbeat import ADDRESSES_MAX, decode, encode
from tests.node.rig import ANN, BOB, CAI, NewRig, heartbeat, settled

HOST = "203.0.113.7"


@pytest.mark.parametrize(
    ("ports", "changes"),
    [
        ([], None),
        ([4000], None),
        ([4000, 4000], False),
        ([4000, 4001], True),
        ([4000, 4001, 4002], True),
        ([4000, 4001, 4000], False),
    ],
)
def test_ports_change_if_no_two_witnesses_agree(ports: list[int], changes: bool | None) -> None:
    """A single liar among three witnesses cannot hide that the port stays the same."""
    assert changes_ports([ExternalAddress(HOST, port) for port in ports]) == changes


async def test_heartbeat_tells_that_ports_change(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path)
    r.context.peers.punching.changes_ports = True
    beat = describe(r.context, 0, 0)
    assert beat.changes_ports
    assert decode(encode(beat)) == beat
    assert len(beat.addresses) < ADDRESSES_MAX, "there is room for the text that says so"
    now = r.context.now()
    for peer, told in ((ANN.peer, True), (BOB.peer, False)):
        heard = heartbeat(r.run.id, changes_ports=told)
        r.context.peers.table.note_heartbeat(peer, heard, now)
    assert [reported(r.context, it.peer) for it in (ANN, BOB, CAI)] == [True, False, False]


def lies(connection: PeerSocket, hello: Mapping[str, object]) -> None:
    """Report a port that does not exist."""
    connection.send_frame(pack(ExternalAddress(HOST, 4000).to_wire()))
    connection.receive_frame()


@pytest.mark.parametrize("changes", [False, True])
async def test_node_asks_two_members_about_one_port(
    tmp_path: Path, new_rig: NewRig, changes: bool
) -> None:
    """Both listen on this machine, at different addresses. A router that changes ports is replaced
    by a member that sees another port."""
    r = await new_rig(tmp_path, welcoming=True)
    context = r.context
    context.own_heartbeat.dialable = False
    r.set_chain(since=dict.fromkeys((context.me, ANN.peer, BOB.peer), 0))
    with ExitStack() as stack:
        for number, each in enumerate((ANN, BOB), start=1):
            credentials = Credentials.create(each)
            listener = Listener(credentials, f"127.0.0.{number}", 0, allowed=lambda peer: True)
            listener.trust_certificate(context.plane.endpoint.certificate_der)
            listener.handle("observe", lies if changes and each is ANN else ObserveServer())
            stack.enter_context(listener)
            place = Endpoint(each.peer, *listener.address, credentials.certificate_der)
            beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
            context.peers.table.note_heartbeat(each.peer, beat, context.now())
            context.peers.detector.note_arrival(each.peer, context.now())
        assert {each.peer for each in witnesses(context)} == {ANN.peer, BOB.peer}
        context.peers.punching.changes_ports = not changes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_port_kind, context)
            await settled(lambda: bool(r.said("ports-change")))
            nursery.cancel_scope.cancel()
    assert context.peers.punching.changes_ports == changes
    assert context.own_heartbeat.due.is_set(), "others hear of it at once"


async def test_without_witnesses_the_nodes_own_experience_counts(
    tmp_path: Path, new_rig: NewRig, autojump_clock: trio.abc.Clock
) -> None:
    r = await new_rig(tmp_path)
    punching, now = r.context.peers.punching, r.context.now
    r.context.own_heartbeat.dialable = False
    seen = list[bool]()
    for happens in (
        partial(punching.note_failed, ANN.peer),
        partial(punching.note_failed, BOB.peer),
        partial(punching.note_reached, CAI.peer),
    ):
        happens(now())
        with trio.move_on_after(LOOK_S):
            await watch_port_kind(r.context)
        seen.append(punching.changes_ports)
    assert seen == [False, True, False]


def test_experience_is_forgotten_after_an_hour() -> None:
    punching = Punching()
    punching.note_failed(ANN.peer, 0.0)
    punching.note_failed(BOB.peer, 9.0)
    times = (9.0, EXPERIENCE_S - 1.0, EXPERIENCE_S)
    assert [punching.has_only_failed(now) for now in times] == [True, True, False]


async def test_node_that_can_be_dialled_asks_nobody(
    tmp_path: Path, new_rig: NewRig, autojump_clock: trio.abc.Clock
) -> None:
    r = await new_rig(tmp_path)
    r.context.peers.punching.changes_ports = True
    with trio.move_on_after(60.0):
        await watch_port_kind(r.context)
    assert not r.context.peers.punching.changes_ports
    assert [said["witnessed"] for said in r.said("ports-change")] == [False]
