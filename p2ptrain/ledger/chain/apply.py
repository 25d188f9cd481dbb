"""Apply entries to the state: a pure function, so equal heads mean equal states.

    GATHER ──roster with participants──► REDUCE ──commit or skip──► GATHER of the next step … ENDED
      ├─ roster without participants         └─ roster with the next attempt: REDUCE again
      │  changes only the membership
      └─ verdict changes only who is excluded from averages
    any phase ──branch──► GATHER of the same step, on a new line ──heal──► HEALED

`why_invalid` says in words why a value cannot come next. It uses only the rules and the state, so
all members reach the same answer. `policy/policy.py` decides what a member proposes, and
`policy/accept.py` which valid proposals it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain import audits, leases, quorum, terms
from p2ptrain.ledger.chain.findings import Audit, Verdict
from p2ptrain.ledger.chain.founders import founders_of, roster_fault
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import STRETCHES_MAX, LedgerState, Phase, Stretch
from p2ptrain.ledger.chain.values import Branch, Commit, Entry, Heal, Roster, Skip, Terms, Value


def genesis(rules: Rules) -> LedgerState:
    """Return the state before the first entry: the founders are voters and hold a lease each."""
    return LedgerState(
        line=rules.run,
        past=(),
        height=0,
        head=Digest(rules.run),
        step=0,
        phase=Phase.GATHER,
        attempt=0,
        tried_before=0,
        roster=None,
        voters=rules.founders,
        learners=(),
        since=dict.fromkeys(rules.founders, 0),
        proven=frozenset(),
        lease_book=leases.top_up(Leases({}), rules.founders, rules.blocks_per_lease),
        tokens_by_peer={},
        tokens=0,
        snapshot=None,
        terms=(),
    )


def apply(rules: Rules, state: LedgerState, entry: Entry) -> LedgerState:
    """Return the state after one more entry. Raises RemoteProtocolError if it is not valid."""
    if entry.height != state.height + 1 or entry.parent != state.head:
        raise RemoteProtocolError(f"entry {entry.height} does not follow head {state.head[:8]}")
    reason = why_invalid(rules, state, entry.value)
    if reason:
        raise RemoteProtocolError(f"entry {entry.height} is not valid: {reason}")
    match entry.value:
        case Roster():
            return _after_roster(rules, state, entry, entry.value)
        case Commit():
            return _after_commit(rules, state, entry, entry.value)
        case Skip():
            return _after_skip(rules, state, entry)
        case Branch():
            return _after_branch(state, entry, entry.value)
        case Heal():
            return _after_heal(state, entry)
        case Verdict():
            return _after_verdict(state, entry, entry.value)
        case _:
            assert_never(entry.value)


def why_invalid(rules: Rules, state: LedgerState, value: Value) -> str:
    """Return the reason why `value` cannot come next; empty if it can."""
    if state.phase is Phase.HEALED:
        return "this branch has healed"
    if state.phase is Phase.ENDED and not isinstance(value, Branch | Heal):
        return "the run has ended"
    if value.step != state.step:
        return f"it is for outer step {value.step}, but the current one is {state.step}"
    match value:
        case Roster():
            return _roster_fault(rules, state, value)
        case Commit():
            return _commit_fault(state, value)
        case Skip():
            return "" if state.phase is Phase.REDUCE else "there is no exchange to skip"
        case Branch():
            return _branch_fault(rules, state, value)
        case Heal():
            return "" if state.past else "this chain is not a branch that could heal"
        case Verdict():
            return _verdict_fault(rules, state, value)
        case _:
            assert_never(value)


def _roster_fault(rules: Rules, state: LedgerState, roster: Roster) -> str:
    if roster.attempt != state.attempt:
        return f"it has attempt {roster.attempt}, but attempt {state.attempt} comes next"
    if roster.terms is not None and (fault := _amendment_fault(rules, state, roster.terms)):
        return fault
    if roster.auditors is not None and (fault := _auditors_fault(rules, state, roster)):
        return fault
    if not roster.participants:
        return _membership_only_fault(state, roster) or _membership_fault(rules, state, roster)
    if state.tries >= rules.attempts_max:
        return f"all {rules.attempts_max} attempts are used up"
    if len(roster.participants) < rules.participants_min:
        count = len(roster.participants)
        return f"it has {count} participants; {rules.participants_min} are needed"
    return _membership_fault(rules, state, roster) or _participants_fault(rules, state, roster)


def _auditors_fault(rules: Rules, state: LedgerState, roster: Roster) -> str:
    if not rules.audits:
        return "it names auditors, but this run has no audits"
    return audits.auditors_fault(roster, approved_of(rules, state))


def approved_of(rules: Rules, state: LedgerState) -> frozenset[PeerId] | None:
    """Return the learners that may audit; None if all may (SPEC.md, A1)."""
    founders = founders_of(rules, state)
    return None if founders is None else founders.delegates


def _verdict_fault(rules: Rules, state: LedgerState, verdict: Verdict) -> str:
    if not rules.audits:
        return "this run has no audits"
    if state.phase is not Phase.GATHER:
        return "claims are not judged during an exchange"
    return audits.verdict_fault(state, verdict)


def _amendment_fault(rules: Rules, state: LedgerState, named: Terms) -> str:
    if named.voters is not None and not rules.founders_vote:
        return f"amendment {named.number} delegates votes, but this is not an open run"
    return terms.amendment_fault(state.terms, state.step, named)


def _membership_only_fault(state: LedgerState, roster: Roster) -> str:
    if state.phase is not Phase.GATHER:
        return "membership alone cannot change during an exchange"
    if roster.voters == state.voters and roster.learners == state.learners:
        return "it changes nothing"
    return ""


def _membership_fault(rules: Rules, state: LedgerState, roster: Roster) -> str:
    names = set(roster.voters)
    kept = tuple(voter for voter in state.voters if voter in names)
    added = roster.voters[len(kept) :]
    if roster.voters[: len(kept)] != kept:
        return "the remaining voters must keep their order, and come before the new ones"
    if not kept:
        return "it keeps none of the voters"
    if len(added) > len(kept):
        return f"it has {len(added)} new voters and keeps only {len(kept)}"
    if (founders := founders_of(rules, state)) is not None:
        return roster_fault(founders, state, roster)
    for voter in added:
        if voter not in state.proven:
            return f"{voter} cannot become a voter before it takes part in a committed update"
    demoted = set(roster.learners).intersection(state.voters)
    return f"{min(demoted)} is a voter and cannot become a learner" if demoted else ""


def _participants_fault(rules: Rules, state: LedgerState, roster: Roster) -> str:
    for each in roster.participants:
        if fault := claim_fault(rules, state, each.peer, each.claim):
            return fault
        held = len(state.leases.get(each.peer, ()))
        if each.blocks > held:
            return f"{each.peer} commits {each.blocks} blocks, but its lease has {held}"
        if each.tokens > each.blocks * rules.tokens_per_block:
            return f"{each.peer} claims {each.tokens} tokens from {each.blocks} blocks"
    return audits.exclusion_fault(state, roster, rules.participants_min)


def claim_fault(rules: Rules, state: LedgerState, peer: PeerId, claim: Digest | None) -> str:
    """Return the reason why `peer` cannot take part in an attempt of the current outer step with
    `claim`; empty if it can. Without claims, a participant must not have one. With claims, it needs
    one, and the first roster of a step that names the peer binds it for the whole step.
    """
    if (claim is None) is rules.claims:
        return f"{peer} has {'no' if rules.claims else 'a'} claim"
    bound = state.claims.get(peer, claim)
    if bound != claim:
        return f"{peer} changes its claim, to which an earlier attempt bound it"
    return ""


def _commit_fault(state: LedgerState, commit: Commit) -> str:
    if state.roster is None:
        return "there is no exchange to commit"
    if commit.attempt != state.roster.attempt:
        return f"it commits attempt {commit.attempt}, but attempt {state.roster.attempt} is current"
    if commit.snapshot is None:
        return ""
    if commit.snapshot.step > state.step:
        return f"its snapshot is of outer step {commit.snapshot.step}, which has not begun"
    if state.snapshot is not None and commit.snapshot.step <= state.snapshot.step:
        return f"its snapshot of outer step {commit.snapshot.step} is not newer than the last one"
    return _state_fault(state, commit)


def _state_fault(state: LedgerState, commit: Commit) -> str:
    if commit.state != state.digest:
        return "it names a different state from the one that it applies to"
    return ""


def _branch_fault(rules: Rules, state: LedgerState, branch: Branch) -> str:
    if not rules.branches:
        return "this run waits for its quorum and does not branch"
    if len(state.past) >= STRETCHES_MAX:
        return f"it would be more than {STRETCHES_MAX} branches deep"
    names, learning = set(branch.voters), set(branch.learners)
    if branch.voters != tuple(voter for voter in state.voters if voter in names):
        return "its voters are not a subset of the current voters in the same order"
    if branch.learners != tuple(peer for peer in state.learners if peer in learning):
        return "its learners are not a subset of the current learners in the same order"
    if quorum.reached(rules.quorum, state.voters, branch.voters):
        return "its voters are a quorum, so they do not need a branch"
    return ""


def _after_branch(state: LedgerState, entry: Entry, branch: Branch) -> LedgerState:
    """Return the state after a Branch. The current reduce is abandoned. Its attempt number is not
    used again, since a member may already have the result of that attempt.
    """
    remaining = set(branch.members)
    gone = tuple(voter for voter in state.voters if voter not in remaining)
    stretch = Stretch(state.line, state.height, state.step, state.tokens, gone)
    left = [member for member in state.members if member not in remaining]
    return replace(
        state,
        height=entry.height,
        head=entry.digest,
        line=entry.digest,
        past=(*state.past, stretch),
        phase=Phase.ENDED if state.phase is Phase.ENDED else Phase.GATHER,
        tried_before=state.attempt,
        roster=None,
        voters=branch.voters,
        learners=branch.learners,
        since={member: state.since[member] for member in branch.members},
        proven=state.proven.intersection(branch.learners),
        lease_book=leases.give_back(state.lease_book, left),
        claims={},  # A claim names its line, so the old ones do not count on the new line.
        auditors=tuple(peer for peer in state.auditors if peer in remaining),
    )


def _after_verdict(state: LedgerState, entry: Entry, verdict: Verdict) -> LedgerState:
    judged, excluded = audits.after_verdict(state, verdict, entry.digest)
    height, head = entry.height, entry.digest
    return replace(state, height=height, head=head, audits=judged, excluded=excluded)


def _after_heal(state: LedgerState, entry: Entry) -> LedgerState:
    return replace(state, height=entry.height, head=entry.digest, phase=Phase.HEALED, roster=None)


def _after_roster(rules: Rules, state: LedgerState, entry: Entry, roster: Roster) -> LedgerState:
    remaining = set(roster.members)
    gone = [member for member in state.members if member not in remaining]
    book = leases.top_up(
        leases.give_back(state.lease_book, gone),
        [member for member in roster.members if not state.is_member(member)],
        terms.lease_blocks(state.terms, state.step, rules.blocks_per_lease),
    )
    opens = bool(roster.participants)
    return replace(
        state,
        height=entry.height,
        head=entry.digest,
        phase=Phase.REDUCE if opens else state.phase,
        attempt=state.attempt + 1 if opens else state.attempt,
        roster=roster if opens else None,
        voters=roster.voters,
        learners=roster.learners,
        since={member: state.since.get(member, state.step) for member in roster.members},
        proven=state.proven.intersection(roster.learners),
        lease_book=book,
        terms=state.terms if roster.terms is None else (*state.terms, roster.terms),
        claims=_claims_after(state, roster),
        auditors=_auditors_after(rules, state, roster),
    )


def _auditors_after(rules: Rules, state: LedgerState, roster: Roster) -> tuple[PeerId, ...]:
    named = state.auditors if roster.auditors is None else roster.auditors
    members = roster.voters, roster.learners
    return audits.auditors_after(named, *members, approved_of(rules, state))


def _claims_after(state: LedgerState, roster: Roster) -> Mapping[PeerId, Digest]:
    """Return the claims to which peers are bound after `roster`, also those of earlier attempts."""
    named = {each.peer: each.claim for each in roster.participants if each.claim is not None}
    return {**state.claims, **named}


def _after_commit(rules: Rules, state: LedgerState, entry: Entry, commit: Commit) -> LedgerState:
    assert state.roster is not None
    participants = state.roster.participants
    tokens_by_peer = dict(state.tokens_by_peer)
    for each in participants:
        tokens_by_peer[each.peer] = tokens_by_peer.get(each.peer, 0) + each.tokens
    took_part = {each.peer for each in participants}
    done = leases.commit(state.lease_book, [(each.peer, each.blocks) for each in participants])
    return _next_step(
        rules,
        state,
        entry,
        leases.top_up(done, state.members, _lease_to_come(rules, state)),
        proven=state.proven.union(peer for peer in state.learners if peer in took_part),
        tokens_by_peer=tokens_by_peer,
        tokens=state.tokens + sum(each.tokens for each in participants),
        snapshot=commit.snapshot or state.snapshot,
        begins=audits.audit_of(state, entry.digest) if rules.audits else (),
    )


def _after_skip(rules: Rules, state: LedgerState, entry: Entry) -> LedgerState:
    book = leases.extend(state.lease_book, state.members, _lease_to_come(rules, state))
    return _next_step(rules, state, entry, book)


def _lease_to_come(rules: Rules, state: LedgerState) -> int:
    return terms.lease_blocks(state.terms, state.step + 1, rules.blocks_per_lease)


def _next_step(
    rules: Rules,
    state: LedgerState,
    entry: Entry,
    book: Leases,
    begins: tuple[Audit, ...] = (),
    **accounts: Any,
) -> LedgerState:
    """Return the state in the next outer step. `accounts` are other fields that a Commit sets, and
    `begins` is the audit that begins with it.
    """
    ended = state.step + 1 >= rules.outer_steps or terms.is_over(state.terms, state.step + 1)
    return replace(
        state,
        height=entry.height,
        head=entry.digest,
        step=state.step + 1,
        phase=Phase.ENDED if ended else Phase.GATHER,
        attempt=0,
        tried_before=0,
        roster=None,
        lease_book=book,
        claims={},
        audits=audits.still_open((*state.audits, *begins), state.step + 1),
        excluded=audits.still_excluded(state.excluded, state.step + 1),
        **accounts,
    )
