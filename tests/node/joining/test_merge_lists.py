"""Organisers that sign two lists at the same time lose no decision, and delegates' grants count."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.grant_gossip import keep_grants, take_grants
from p2ptrain.node.joining.hello_server import open_requests, pass_requests_on, waiting_peers
from p2ptrain.node.joining.merge_lists import merge_lists
from p2ptrain.node.state.join_requests import Applicant
from p2ptrain.peers.protocol_names import grants_topic
from p2ptrain.run import (
    Allowlist,
    Amendment,
    CoOrganisers,
    Grant,
    JoinRequest,
    SignedAllowlist,
    SignedAmendment,
    SignedGrant,
)
from p2ptrain.run.grant import encode_grants
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, settled, somebody

DAN = somebody(104)


def roles(r: Rig) -> dict[PeerId, str]:
    held = r.context.admission.allowlist
    assert held is not None
    return {p: role for p, role in held.allowlist.roles.items() if p != r.context.me}


def two_lists(r: Rig) -> tuple[SignedAllowlist, SignedAllowlist]:
    """Return the next list of this organiser, which admits Bob, and that of Ann, which admits Cai
    and revokes Dan."""
    first = Allowlist.of(r.run.id, 1, [r.context.me, DAN.peer])
    mine = first.with_peer(BOB.peer)
    theirs = first.without_peer(DAN.peer, tracks=True).with_peer(CAI.peer).numbered(2)
    signed = (
        SignedAllowlist.publish(r.context.identity, mine),
        SignedAllowlist.publish(ANN, theirs),
    )
    return signed


async def test_organisers_node_signs_a_list_with_the_decisions_of_both(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[DAN.peer], organisers=CoOrganisers((ANN.peer,)))
    for each in two_lists(r):
        r.context.admission.adopt_if_newer(each.to_bytes())
    nursery.start_soon(merge_lists, r.context)
    await settled(lambda: roles(r) == {BOB.peer: "trainer", CAI.peer: "trainer"})
    held = r.context.admission.allowlist
    assert held is not None
    assert (held.allowlist.sequence, set(held.allowlist.revoked)) == (3, {DAN.peer})
    assert r.said("merged-allowlists")
    assert r.network.published
    assert r.context.admission.to_merge == ()


async def test_node_warns_if_several_organisers_must_sign_the_merged_list(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, organisers=CoOrganisers((ANN.peer, CAI.peer), 2))
    for each in two_lists(r):
        signed = SignedAllowlist(each.allowlist, each.signed.also_by(CAI))
        r.context.admission.adopt_if_newer(signed.to_bytes())
    nursery.start_soon(merge_lists, r.context)
    await settled(lambda: [each.code for each in r.context.alerts.warnings.values()])
    (caution,) = r.context.alerts.warnings.values()
    assert caution.code == "ALLOW-MERGE"
    assert len(r.context.admission.to_merge) == 1


def amend(r: Rig, number: int, step: int, *admitters: PeerId) -> SignedAmendment:
    """Let this node have an amendment, on which the members have not agreed yet."""
    wanted = Amendment(r.run.id, number, step, admitters=tuple(sorted(admitters)))
    made = SignedAmendment.publish(r.context.identity, wanted, r.run)
    assert r.context.amendments.adopt_new(b"\x91" + _packed(made.to_bytes()))
    return made


def _packed(data: bytes) -> bytes:
    return b"\xc5" + len(data).to_bytes(2, "big") + data


async def test_grant_counts_once_the_delegation_is_agreed_and_in_force(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer], steps=40)
    admission = r.context.admission
    r.set_chain(learners=(ANN.peer,))
    nursery.start_soon(keep_grants, r.context)
    made = amend(r, 1, 3, ANN.peer)
    r.context.changes.notify_all()
    await settled(lambda: ANN.peer in admission.delegations)
    # Now the ledger becomes current, so that only what the members agreed on counts.
    r.context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), r.context.now())
    r.context.changes.notify_all()
    await settled(lambda: not admission.delegations)
    grant = SignedGrant.publish(ANN, Grant(r.run.id, BOB.peer, 1, 1, 1))
    await take_grants(r.context, CAI.peer, encode_grants([grant]))
    assert not admission.admits(BOB.peer)
    r.set_chain(terms=(made.terms,), step=3)
    r.context.changes.notify_all()
    await settled(lambda: ANN.peer in admission.delegations)
    await take_grants(r.context, CAI.peer, encode_grants([grant]))
    assert admission.may_train(BOB.peer)
    published = [
        payload for topic, payload in r.network.published if topic == grants_topic(r.run.id)
    ]
    assert published == [encode_grants([grant])]
    assert [each["delegate"] for each in r.said("grant")] == [ANN.peer]
    ends = amend(r, 2, 5)
    r.set_chain(terms=(made.terms, ends.terms), step=5)
    r.context.changes.notify_all()
    await settled(lambda: not admission.admits(BOB.peer))


def wait_here(r: Rig, via: PeerId | None = None) -> None:
    signed = JoinRequest(r.run.id, DAN.peer, 1).to_bytes(DAN)
    r.context.join_requests.pending[DAN.peer] = Applicant(r.context.now(), "", signed, via=via)
    r.context.changes.notify_all()


async def test_request_is_forwarded_to_each_organiser_and_delegate_and_not_further(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(
        tmp_path, allowed=[BOB.peer, CAI.peer], organisers=CoOrganisers((ANN.peer,)), steps=40
    )
    organiser = r.context.me
    r.context.admission.set_agreed([Amendment(r.run.id, 1, 3, admitters=(BOB.peer,))])
    r.network.peers = {organiser, ANN.peer, BOB.peer, CAI.peer}
    r.surround(identity=CAI)
    wait_here(r, via=somebody(9).peer)
    nursery.start_soon(pass_requests_on, r.context)
    await trio.testing.wait_all_tasks_blocked()
    assert r.network.requested == [], "another member forwarded it, so everybody has it"
    wait_here(r)
    await settled(lambda: len(r.network.requested) == 3)
    assert {peer for peer, _ in r.network.requested} == {organiser, ANN.peer, BOB.peer}


async def test_delegate_sees_requests_except_those_of_revoked_peers(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, allowed=[BOB.peer], steps=40)
    organiser = r.context.identity
    wait_here(r)
    r.surround(identity=BOB)
    assert waiting_peers(r.context) == []
    r.context.admission.set_agreed([Amendment(r.run.id, 1, 3, admitters=(BOB.peer,))])
    assert waiting_peers(r.context) == open_requests(r.context) == [DAN.peer]
    held = r.context.admission.allowlist
    assert held is not None
    after = SignedAllowlist.publish(organiser, held.allowlist.without_peer(DAN.peer, tracks=True))
    assert r.context.admission.adopt_if_newer(after.to_bytes())
    assert open_requests(r.context) == []
    r.surround(identity=organiser)
    assert open_requests(r.context) == [DAN.peer]
