"""The organiser's node admits peers with valid tokens, and no more than a token allows."""

from __future__ import annotations

import time
from pathlib import Path

import trio
import trio.testing

from p2ptrain.archive.token_uses import load_uses
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.node.joining.admit_by_token import admit_by_token
from p2ptrain.node.state.join_requests import Applicant
from p2ptrain.run import (
    Allowlist,
    Denial,
    JoinRequest,
    SignedAllowlist,
    SignedDenial,
    Ticket,
    load_allowlist,
    save_allowlist,
)
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, settled, somebody

DAN, EVE = somebody(104), somebody(105)


def ticket_of(r: Rig, *, uses: int = 2, days: int = 7, by: Identity | None = None) -> Ticket:
    end = int(time.time()) + days * 86_400
    organiser = by or r.context.identity
    return Ticket.issue(organiser, r.run.id, b"t" * 32, uses=uses, expires_unix=end)


def wait_here(r: Rig, who: Identity, ticket: Ticket | None, first_s: float = 0.0) -> None:
    """Let `who` wait for admission, with a request that contains the token of `ticket`."""
    token = ticket.signed.signed.to_bytes() if ticket else b""
    proof = ticket.proof_for(who.peer) if ticket else b""
    signed = JoinRequest(r.run.id, who.peer, 1, "", token, proof).to_bytes(who)
    r.context.join_requests.pending[who.peer] = Applicant(0.0, "", signed, first_s)
    r.context.changes.notify_all()


def listed(r: Rig) -> tuple[int, set[PeerId]]:
    held = load_allowlist(r.context.home.allowlist, r.run)
    assert held is not None
    return held.allowlist.sequence, set(held.allowlist.peers) - {r.run.manifest.organiser}


async def test_peers_are_admitted_in_the_order_of_their_requests_until_the_token_is_used_up(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    ticket = ticket_of(r)
    for number, who in enumerate((DAN, BOB, CAI), 1):
        wait_here(r, who, ticket, first_s=number)
    wait_here(r, EVE, None)
    nursery.start_soon(admit_by_token, r.context)
    await settled(lambda: r.context.admission.admits(BOB.peer))
    await trio.testing.wait_all_tasks_blocked()
    assert listed(r) == (2, {ANN.peer, BOB.peer, DAN.peer}), "one list admits all who are entitled"
    assert load_uses(r.context.home.token_uses) == {
        ticket.signed.token.key: {BOB.peer: 2, DAN.peer: 2}
    }
    assert {each["peer"] for each in r.said("admitted-by-token")} == {BOB.peer, DAN.peer}
    assert r.network.published, "the new list is published at once"


async def test_uses_are_remembered_after_a_restart_and_a_revoked_peer_stays_out(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[])
    ticket = ticket_of(r)
    wait_here(r, BOB, ticket)
    with trio.CancelScope() as first_life:
        async with trio.open_nursery() as inner:
            inner.start_soon(admit_by_token, r.context)
            await settled(lambda: r.context.admission.admits(BOB.peer))
            first_life.cancel()
    without = Allowlist.of(r.run.id, 3, [r.context.me])
    save_allowlist(r.context.home.allowlist, SignedAllowlist.publish(r.context.identity, without))
    assert r.context.admission.reload()
    for who in (BOB, CAI, DAN):
        wait_here(r, who, ticket)
    nursery.start_soon(admit_by_token, r.context)
    await settled(lambda: len(listed(r)[1]) == 1)
    await trio.testing.wait_all_tasks_blocked()
    assert listed(r)[0] == 4
    assert listed(r)[1] <= {CAI.peer, DAN.peer}


async def test_expired_forged_and_denied_requests_are_not_admitted(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[])
    wait_here(r, BOB, ticket_of(r, days=-1))
    wait_here(r, CAI, ticket_of(r, by=CAI))
    wait_here(r, DAN, ticket_of(r))
    now = int(time.time())
    denial = Denial(r.run.id, DAN.peer, now, now + 1000)
    signed = SignedDenial.publish(r.context.identity, denial)
    r.context.join_requests.denials[DAN.peer] = signed
    nursery.start_soon(admit_by_token, r.context)
    await trio.testing.wait_all_tasks_blocked()
    assert listed(r) == (1, set())
    del r.context.join_requests.denials[DAN.peer]
    r.context.changes.notify_all()
    await settled(lambda: listed(r) == (2, {DAN.peer}))


async def test_only_the_organisers_node_admits(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    wait_here(r, BOB, ticket_of(r))
    r.surround(identity=ANN)
    await admit_by_token(r.context)  # It returns at once.
    assert listed(r) == (1, {ANN.peer})


async def test_nobody_is_admitted_while_no_other_member_can_be_asked_for_a_newer_list(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """If this home is a restored backup, another member may hold a different list 2."""
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    r.set_chain(learners=(ANN.peer,))
    wait_here(r, BOB, ticket_of(r))
    nursery.start_soon(admit_by_token, r.context)
    await trio.testing.wait_all_tasks_blocked()
    assert listed(r) == (1, {ANN.peer})
