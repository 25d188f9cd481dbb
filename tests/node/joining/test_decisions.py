"""The organiser's decisions reach waiting peers at once, through the members that they asked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.node.joining.decisions import (
    ASK_AGAIN,
    denial_of,
    reload_denials,
    take_decisions,
    tell_decisions,
)
from p2ptrain.node.joining.hello_server import open_requests
from p2ptrain.node.state.join_requests import Applicant
from p2ptrain.peers.protocol_names import DECISION_PROTOCOL
from p2ptrain.run import Allowlist, Denial, SignedAllowlist, SignedDenial, save_denials
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, settled, somebody

DAN = somebody(104)


def denial(r: Rig, peer: PeerId, *, days: int = 30, run: RunId | None = None) -> SignedDenial:
    """Return a denial that the organiser made ten days ago."""
    made = int(time.time()) - 10 * 86_400
    said = Denial(run or r.run.id, peer, made, made + (10 + days) * 86_400, "enough for now")
    return SignedDenial.publish(organiser_of(r), said)


def organiser_of(r: Rig) -> Identity:
    return load_or_create(r.context.home.identity)


def wait_here(r: Rig, peer: PeerId, *, via: PeerId | None = None, asked_s: float = 0.0) -> None:
    """Let `peer` wait for admission at the node `r`."""
    r.context.join_requests.pending[peer] = Applicant(asked_s, "", b"", via=via)
    r.context.changes.notify_all()


async def test_organiser_sends_a_denial_to_the_peer_or_to_the_member_that_forwarded_its_request(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    r.network.peers = {ANN.peer, CAI.peer}
    of_cai, of_dan = denial(r, CAI.peer), denial(r, DAN.peer)
    for peer, via in ((CAI.peer, None), (DAN.peer, ANN.peer), (BOB.peer, ANN.peer)):
        wait_here(r, peer, via=via)
    save_denials(r.context.home.denials, [of_cai, of_dan])
    nursery.start_soon(tell_decisions, r.context)
    expected = {(CAI.peer, of_cai.to_bytes()), (ANN.peer, of_dan.to_bytes())}
    await settled(lambda: set(r.network.requested) == expected)
    assert open_requests(r.context) == [BOB.peer]
    r.context.changes.notify_all()
    await trio.testing.wait_all_tasks_blocked()
    assert len(r.network.requested) == 2, "each request is answered once"
    wait_here(r, CAI.peer, asked_s=15.0)
    await settled(lambda: r.network.requested[2:] == [(CAI.peer, of_cai.to_bytes())])


async def test_admitted_peer_is_told_to_ask_again_and_no_longer_waits(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    organiser = organiser_of(r)
    r.surround(identity=ANN)
    r.network.peers = {CAI.peer, organiser.peer}
    wait_here(r, CAI.peer)
    wait_here(r, DAN.peer)
    nursery.start_soon(tell_decisions, r.context)
    await trio.testing.wait_all_tasks_blocked()
    assert r.network.requested == []
    newer = Allowlist.of(r.run.id, 2, [ANN.peer, CAI.peer])
    r.context.admission.adopt_if_newer(SignedAllowlist.publish(organiser, newer).to_bytes())
    r.context.changes.notify_all()
    await settled(lambda: r.network.requested == [(CAI.peer, ASK_AGAIN)])
    assert list(r.context.join_requests.pending) == [DAN.peer]


async def test_member_passes_a_denial_on_to_a_waiting_peer(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    of_cai = denial(r, CAI.peer)
    r.surround(identity=ANN)
    r.network.peers = {CAI.peer}
    wait_here(r, CAI.peer)
    take_decisions(r.context)
    take = r.network.handlers[DECISION_PROTOCOL]
    nursery.start_soon(tell_decisions, r.context)
    await take(BOB.peer, ASK_AGAIN)
    await take(r.run.manifest.organiser, of_cai.to_bytes())
    await settled(lambda: r.network.requested == [(CAI.peer, of_cai.to_bytes())])


async def test_member_keeps_only_genuine_denials_of_waiting_peers(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    of_cai, of_dan, ended = denial(r, CAI.peer), denial(r, DAN.peer), denial(r, BOB.peer, days=-1)
    foreign = denial(r, CAI.peer, run=RunId("b" * 64))
    r.surround(identity=ANN)
    for peer in (CAI.peer, BOB.peer):
        wait_here(r, peer)
    take_decisions(r.context)
    take = r.network.handlers[DECISION_PROTOCOL]
    forged = SignedDenial.publish(ANN, of_cai.denial).to_bytes()
    for wrong, error in ((forged, RemoteProtocolError), (foreign.to_bytes(), RunMismatch)):
        with pytest.raises(error):
            await take(BOB.peer, wrong)
    for each in (of_cai, of_dan, ended):
        await take(BOB.peer, each.to_bytes())
    assert denial_of(r.context, CAI.peer) == of_cai
    assert denial_of(r.context, DAN.peer) is None, "Dan does not wait here"
    assert denial_of(r.context, BOB.peer) is None, "it has ended"
    del r.context.join_requests.pending[CAI.peer]
    await take(BOB.peer, ended.to_bytes())
    assert list(r.context.join_requests.denials) == [BOB.peer]


async def test_damaged_file_of_denials_is_an_error_that_names_it(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path)
    assert reload_denials(r.context) == 0
    r.context.home.denials.write_bytes(b"noise")
    with pytest.raises(ConfigError) as caught:
        reload_denials(r.context)
    assert caught.value.code == "RUN-FILE"
    assert str(r.context.home.denials) in caught.value.what
