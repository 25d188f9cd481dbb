"""A reader is admitted to read the run. Nothing that it says has an effect on the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.errors import NotAuthorised
from p2ptrain.ledger.messages.events import PeerHeight, Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Refused
from p2ptrain.ledger.messages.peer_reports import AllowedPeers
from p2ptrain.node.consensus.inbox import receive
from p2ptrain.node.gossip.allowlist_gossip import apply_admission
from p2ptrain.node.gossip.ask_peers import ADMITTED, STRANGER, rank_of
from p2ptrain.node.gossip.gossip import heartbeat_senders, take_heartbeat
from p2ptrain.node.gossip.role_change import notice_role
from p2ptrain.node.joining.hello_server import answer_hellos
from p2ptrain.peers.heartbeat import ReadyReport
from p2ptrain.peers.heartbeat_delta import HeartbeatSender
from p2ptrain.peers.hello_messages import HelloRequest, decode_reply, encode_request
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL
from p2ptrain.run import JoinRequest, Role, SignedAllowlist
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, settled


def give_role(r: Rig, role: Role, who: object = ANN) -> None:
    held = r.context.admission.allowlist
    assert held is not None
    after = held.allowlist.with_peer(who.peer, role)  # type: ignore[attr-defined]
    signed = SignedAllowlist.publish(r.context.identity, after)
    assert r.context.admission.adopt_if_newer(signed.to_bytes())


def beat(r: Rig, **changes: object) -> bytes:
    return HeartbeatSender().encode_next(heartbeat(r.run.id, **changes))


async def test_readers_heartbeat_gives_its_endpoint_and_reports_nothing(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path)
    give_role(r, "reader")
    ready = ReadyReport(0, 32, 2)
    await take_heartbeat(r.context, ANN.peer, beat(r, joining=True, ready=ready))
    await take_heartbeat(r.context, BOB.peer, beat(r))
    assert r.context.peers.table.get(ANN.peer) is not None
    assert r.heard() == [PeerHeight(BOB.peer, 0, r.run.id)]
    (said,) = r.said("reader-acts")
    assert (said["peer"], "cannot train" in str(said["what"])) == (ANN.peer, True)
    assert heartbeat_senders(r.context) == 1
    assert not r.context.peers.is_vouched_for(ANN.peer)
    assert (rank_of(r.context, ANN.peer), rank_of(r.context, BOB.peer)) == (STRANGER, ADMITTED)


async def test_reader_may_ask_for_entries_and_send_no_other_ledger_message(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path)
    give_role(r, "reader")
    receive(r.context, ANN.peer, Refused(1, 0, 0, ""))
    receive(r.context, ANN.peer, EntriesRequest(1))
    receive(r.context, BOB.peer, Refused(1, 0, 0, ""))
    assert r.heard() == [
        Received(ANN.peer, EntriesRequest(1)),
        Received(BOB.peer, Refused(1, 0, 0, "")),
    ]
    assert len(r.said("reader-acts")) == 1


async def test_ledger_never_admits_a_reader(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path)
    give_role(r, "reader")
    await apply_admission(r.context)
    (allowed,) = r.heard()
    assert isinstance(allowed, AllowedPeers)
    assert allowed.peers is not None
    assert ANN.peer not in allowed.peers
    assert BOB.peer in allowed.peers


async def test_reader_learns_addresses_and_forwards_no_requests(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer, BOB.peer])
    give_role(r, "reader")
    answer_hellos(r.context)
    join = JoinRequest(r.run.id, CAI.peer, 1).to_bytes(CAI)
    for teller in (ANN, BOB):
        request = encode_request(HelloRequest(r.run.id, join))
        reply = decode_reply(await r.network.handlers[HELLO_PROTOCOL](teller.peer, request))
        if teller is ANN:
            assert reply.admitted
            assert r.context.me in reply.peers
            assert r.context.join_requests.pending == {}
    assert set(r.context.join_requests.pending) == {CAI.peer}


async def test_trainer_that_becomes_a_reader_ends_and_a_reader_is_told_its_role(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path / "trainer")
    give_role(r, "reader", BOB)
    r.surround(identity=BOB)
    with pytest.raises(NotAuthorised) as caught:
        await notice_role(r.context)
    assert caught.value.code == "AUTH-READER"
    reader = await new_rig(tmp_path / "reader", seed=True)
    give_role(reader, "reader", BOB)
    organiser = reader.context.identity
    reader.surround(identity=BOB)
    nursery.start_soon(notice_role, reader.context)
    warnings = reader.context.alerts.warnings
    await settled(lambda: {each.code for each in warnings.values()} == {"ROLE-READER"})
    reader.surround(identity=organiser)
    give_role(reader, "trainer", BOB)
    reader.context.changes.notify_all()
    await settled(lambda: {each.code for each in warnings.values()} == {"ROLE-TRAINER"})
