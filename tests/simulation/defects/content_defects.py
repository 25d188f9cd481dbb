"""Defects in the contents of proposals: leases, updates, membership, and waiting times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain import leases, terms
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.ledger.history import check_base
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy import accept, membership, participants
from p2ptrain.ledger.policy.participants import Readiness
from p2ptrain.ledger.policy.reports import Reports
from tests.simulation.defects.planting import Patch


def lease_returned_twice(patch: Patch) -> None:
    def give_back(book: Leases, members: list[str]) -> Leases:
        returned = [b for m in members for b in book.held.get(m, ())]  # type: ignore[call-overload]
        held = {peer: lease for peer, lease in book.held.items() if peer not in members}
        return Leases(held, (*book.returned, *returned, *returned), book.next_block)

    patch(leases, "give_back", give_back)


def commit_without_bytes(patch: Patch) -> None:
    yes = Judgement(Answer.YES, "why not")
    patch(accept, "_judge_commit", lambda rules, at, reports, commit, *, forced: yes)


def one_maker_is_enough(patch: Patch) -> None:
    """A commit needs only one peer's claim that it computed the update."""
    patch(accept, "is_made", lambda at, reports, update: True)


def newcomers_vote_at_once(patch: Patch) -> None:
    def next_members(at: LedgerState, reports: object, *away: object) -> object:
        members = original(at, reports, *away)  # type: ignore[arg-type]
        return None if members is None else (members[0] + members[1], ())

    original = membership.next_members
    patch(membership, "next_members", next_members)
    patch(apply_module, "_membership_fault", lambda rules, at, roster: "")


def lease_kept_after_commit(patch: Patch) -> None:
    patch(leases, "commit", lambda book, trained: book)


def lease_lost_with_its_member(patch: Patch) -> None:
    def give_back(book: Leases, members: list[str]) -> Leases:
        held = {peer: lease for peer, lease in book.held.items() if peer not in members}
        return Leases(held, book.returned, book.next_block)

    patch(leases, "give_back", give_back)


def grace_ignored(patch: Patch) -> None:
    def gathered(rules: Rules, at: LedgerState, reports: Reports) -> Readiness:
        have = original(rules, at, reports)
        return replace(have, awaited=()) if have.enough else have

    original = participants.readiness
    patch(participants, "readiness", gathered)


def claims_not_doubted(patch: Patch) -> None:
    """An entry that one voter claims to have accepted counts as chosen, without further
    promises.
    """

    def may_accept(*knowing: Any, doubtful: bool, **judging: Any) -> Judgement:
        return original(*knowing, **judging)

    original = accept.may_accept
    patch(accept, "may_accept", may_accept)


def others_dropped_at_will(patch: Patch) -> None:
    """A proposer can drop other members without a reason."""
    patch(accept, "_usurped", lambda rules, at, reports, roster, now: "")


def snapshot_not_checked(patch: Patch) -> None:
    patch(accept, "_contradicted", lambda reports, commit: "")
    one_word_is_enough(patch)


def one_word_is_enough(patch: Patch) -> None:
    """A voter that has not written a snapshot itself believes the proposer's claim about that
    snapshot.
    """
    patch(accept, "is_vouched_for", lambda rules, at, reports, snapshot: True)


def any_base_taken(patch: Patch) -> None:
    patch(check_base, "check_base", lambda rules, offered, named, verify: None)


def state_not_checked(patch: Patch) -> None:
    patch(apply_module, "_state_fault", lambda at, commit: "")


def amendment_not_asked_for(patch: Patch) -> None:
    patch(accept, "_terms_missing", lambda reports, roster: None)


def amended_at_once(patch: Patch) -> None:
    """An amendment can be agreed on after the outer step that it names has begun."""

    def why_not(agreed: tuple[Terms, ...], step: int, new: Terms) -> str:
        return original(agreed, min(step, new.step - 1), new)

    original = terms.amendment_fault
    patch(terms, "amendment_fault", why_not)
