"""Decide whether this node may vote for a proposal, by what is agreed and what it was told.

There are three answers: yes, no, or later. "Later" means that something that this node lacks
(bytes, a report, a newer allowlist) may still arrive; the proposal is then judged again at each
event. Three rules are about safety: the voter holds a Commit's bytes and a roster's amendment, a
quorum vouches for a snapshot, and no roster drops a member that is up. The other rules guard
against hasty or faulty proposers. They are lenient where two nodes may have heard different
reports, because a needless refusal costs more than a wrong roster, which costs one attempt.
"""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Branch, Commit, Heal, Participant, Roster, Terms, Value
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.auditing import handpicked, unsigned_in
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.membership import (
    disarming,
    dropped_for_nothing,
    is_safe,
    too_few_left,
    unasked,
)
from p2ptrain.ledger.policy.participants import (
    could_take_part,
    first_participants,
    readiness,
    survivors,
    suspicion_of,
)
from p2ptrain.ledger.policy.reduce_results import (
    alone_too_long,
    failure_known,
    finished_update,
    is_made,
    result_is_stale,
)
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.rest import rested_at_least_until
from p2ptrain.ledger.policy.snapshot_votes import is_vouched_for

_YES = Judgement(Answer.YES, "it agrees with what this node knows")


def may_accept(
    rules: Rules,
    state: LedgerState,
    reports: Reports,
    value: Value,
    now: float,
    *,
    forced: bool,
    doubtful: bool = False,
    late: bool = False,
    proposer: PeerId | None = None,
) -> Judgement:
    """Decide whether this node may accept `value` now.

    - `forced`: the promises do not allow the proposer to propose anything else, since `value` may
      already be chosen. Then most rules do not apply.
    - `doubtful`: with other or further promises, the proposer might not be forced. A liar may have
      invented the value, so a Commit is still compared with this node's own results, and a roster
      with the peers that this node knows to be up.
    - `late`: the height has been undecided for so long that differences between the nodes' reports
      must not delay it any longer.
    - `proposer`: the peer that first proposed `value`; in an earlier round, if it is forced.
    """
    fault = why_invalid(rules, state, value)
    if fault:
        return Judgement(Answer.NO, fault)
    if isinstance(value, Branch):
        return Judgement(Answer.NO, "there is no vote on a branch: all of its voters sign it")
    if isinstance(value, Heal):
        return _judge_heal(reports, value, forced=forced)
    if isinstance(value, Verdict):
        unsigned = unsigned_in(reports, value)
        return Judgement(Answer.NO, unsigned) if unsigned else _YES
    if isinstance(value, Commit):
        return _judge_commit(rules, state, reports, value, forced=forced and not doubtful)
    if isinstance(value, Roster):
        if (missing := _terms_missing(reports, value)) is not None:
            lacks = f"this node does not have amendment {missing.number} yet"
            return Judgement(Answer.LATER, lacks)
        founders, fault = reports.founders, ""
        if founders is not None:
            if few := too_few_left(founders, state, reports, value):
                return Judgement(Answer.LATER, few)
            fault = dropped_for_nothing(founders, state, reports, value, now)
        fault = fault or ("" if forced else _unasked(state, reports, value))
        fault = fault or ("" if late else _usurped(rules, state, reports, value, now))
        fault = fault or ("" if late else _self_serving(rules, state, reports, value, proposer))
        if forced and not (fault and doubtful):
            return _YES
        later = Judgement(Answer.LATER, fault)
        judged = later if forced else _judge_roster(rules, state, reports, value, now, fault)
        if judged.answer is Answer.YES:
            return judged
        return replace(judged, shows=_claims_to_show(rules, state, reports, value))
    if forced:
        return _YES
    return _judge_skip(rules, state, reports, now)


def _judge_heal(reports: Reports, heal: Heal, *, forced: bool) -> Judgement:
    """Judge a Heal, which ends this branch. A voter accepts it only after it has verified the named
    chain, and that chain outranks this branch (SPEC.md B5). If the Heal is forced, any verified
    chain that outranks this branch is enough, since the named chain may itself have healed.
    """
    outranked_by = reports.outranked_by
    if outranked_by is None or not (forced or outranked_by.digest == heal.entry):
        return Judgement(Answer.LATER, "this node has not verified that chain")
    return _YES


def _judge_commit(
    rules: Rules, state: LedgerState, reports: Reports, commit: Commit, *, forced: bool
) -> Judgement:
    reason = "" if forced else _contradicted(reports, commit)
    if reason:
        return Judgement(Answer.NO, reason)
    if not forced and not is_made(state, reports, commit.update):
        return Judgement(
            Answer.LATER, "this node does not know that most participants computed this update"
        )
    if commit.update not in reports.held:
        return Judgement(Answer.LATER, "this node does not have the update yet", commit.update)
    named = commit.snapshot
    if not forced and named is not None and not is_vouched_for(rules, state, reports, named):
        return Judgement(
            Answer.LATER, f"this node does not know that a quorum has snapshot {named.digest[:8]}"
        )
    return _YES


def _contradicted(reports: Reports, commit: Commit) -> str:
    """Say how this node's own results contradict `commit`; empty if they do not."""
    own = reports.done.get(reports.me)
    mine = own is not None and (own.step, own.attempt) == (commit.step, commit.attempt)
    if own is not None and mine and own.update != commit.update:
        return f"this node computed update {own.update[:8]}, not {commit.update[:8]}"
    if commit.snapshot is not None:
        taken = reports.own_snapshots.get(commit.snapshot.step)
        if taken is not None and taken != commit.snapshot.digest:
            return f"this node's snapshot of step {commit.snapshot.step} is {taken[:8]}"
    return ""


def _unasked(state: LedgerState, reports: Reports, roster: Roster) -> str:
    return "" if reports.founders is None else unasked(state, reports, roster)


def _usurped(rules: Rules, state: LedgerState, reports: Reports, roster: Roster, now: float) -> str:
    """Say how the roster breaks SPEC.md S11, as far as this node knows; empty if it does not. For
    example, it drops a member, or leaves it out of the reduce, without a reason.
    """
    if stranger := _unasked(state, reports, roster):
        return stranger
    named = roster.terms
    if named is not None and (stop := disarming(reports.founders, state, reports, named)):
        return stop
    names, taking = set(roster.members), set(roster.peers)
    opened = state.roster
    fallen = suspicion_of(state, reports).fallen(len(opened.peers)) if opened is not None else set()
    excused = names | reports.down | fallen | {reports.me}
    for peer in state.members:
        if peer not in excused and reports.stays(peer):
            return f"it drops {peer}, but this node considers that peer up"
    if risk := _endangering(state, reports, roster) or handpicked(rules, state, reports, roster):
        return risk
    if not roster.participants:
        return ""
    if opened is None and (hasty := _hasty(rules, state, reports, now)):
        return hasty
    able = set(
        could_take_part(rules, state, reports)
        if opened is not None
        else (part.peer for part in readiness(rules, state, reports).contributors)
    )
    back = sorted(taking & state.excluded.keys())
    if back and len(able - state.excluded.keys()) >= rules.participants_min:
        return f"it includes {back[0]}, which is excluded, although enough others are ready"
    if 2 * len(able - taking) > len(able):
        return f"it leaves out {len(able - taking)} of {len(able)} peers that could take part"
    for peer in sorted(able - taking):
        if (count := reports.blame.kept_out.get(peer, 0)) >= reports.blame.refused_after(peer):
            return f"it leaves out {peer}, which was ready for each of the last {count} commits"
    return _misquoted(state, reports, roster)


def _endangering(state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Say that the roster has more new delegates than may vanish at once (SPEC.md F6), as far as
    this node knows; empty if it does not."""
    if reports.founders is None:
        return ""
    kept = [voter for voter in roster.voters if voter in state.voters]
    added = [voter for voter in roster.voters if voter not in state.voters]
    if is_safe(reports.founders, reports, kept, added):
        return ""
    return "without its new voters, this node considers too few of the others up for a quorum"


def _self_serving(
    rules: Rules, state: LedgerState, reports: Reports, roster: Roster, proposer: PeerId | None
) -> str:
    """Return the reason why the roster's proposer should not take part in its reduce, because of
    doubts between it and the other participants; empty if it may take part (SPEC.md S13).

    Without this rule, a voter that spoils every reduce would readmit itself, or the peer that it
    accuses, each time it proposes. The rule is only about the proposer: nodes remember different
    failures, so they would often refuse each other's choice of the other participants.
    """
    if proposer is None or proposer not in roster.peers:
        return ""
    under_way = None
    if state.roster is not None:
        under_way = reports.blame.failure(state.roster.peers, reports.accusations(state.roster))
    if reports.blame.against(proposer, frozenset(roster.peers), under_way) < DOUBT_MIN:
        return ""
    own = (
        first_participants(rules, readiness(rules, state, reports))
        if state.roster is None
        else survivors(rules, state, reports)
    )
    chosen = frozenset(part.peer for part in own)
    if reports.blame.against(proposer, chosen, under_way) >= DOUBT_MIN:
        return ""  # There are too few other peers: this node's own roster would also include it.
    return f"its proposer {proposer} takes part, although this node doubts it"


def _hasty(rules: Rules, state: LedgerState, reports: Reports, now: float) -> str:
    """Return the reason why it is too early to open a reduce; empty if it is not. Without this
    rule, the first peer to claim that it is ready could average alone without having trained. It
    could also open one outer step after another, and all of them would be skipped.
    """
    have = readiness(rules, state, reports)
    if have.awaited and not have.enough:
        return "it opens an exchange before a quorum is ready"
    if now < rested_at_least_until(rules, reports):
        return f"it opens an exchange too soon after {reports.skips} skipped outer steps"
    return ""


def _misquoted(state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Return which participant's numbers in the roster differ from its report; empty if none do.
    With wrong numbers, that participant would have to report that its work is lost.
    """
    known = set(state.roster.participants) if state.roster is not None else set()
    for part in roster.participants:
        is_known = part.peer == reports.me or part in known
        if not is_known and not _is_reported(state, reports, part):
            return f"this node does not know that {part.peer} trained on {part.tokens} tokens"
    return ""


def _is_reported(state: LedgerState, reports: Reports, part: Participant) -> bool:
    ready = reports.ready.get(part.peer)
    said = ready is not None and (ready.step, ready.tokens, ready.blocks, ready.named)
    return said == (state.step, part.tokens, part.blocks, part.claim)


def _claims_to_show(
    rules: Rules, state: LedgerState, reports: Reports, roster: Roster
) -> tuple[Ready, ...]:
    """Return the reports with claims that differ from those in the roster. Its proposer does not
    seem to know them (SPEC.md, C4).
    """
    if not rules.claims:
        return ()
    parts = (part for part in roster.participants if not _is_reported(state, reports, part))
    said = (reports.ready.get(part.peer) for part in parts)
    return tuple(it for it in said if it is not None and it.claim and it.step == state.step)


def _judge_roster(
    rules: Rules, state: LedgerState, reports: Reports, roster: Roster, now: float, usurped: str
) -> Judgement:
    me = reports.me
    if state.is_member(me) and me not in roster.members and reports.stays(me):
        return Judgement(Answer.NO, f"it drops {me}, which is this node")
    for peer in roster.members:
        evidence = reports.accused.get(peer)
        if evidence is not None:
            return Judgement(Answer.NO, f"there is evidence against {peer}", evidence=evidence)
        if not state.is_member(peer) and not reports.allows(peer):
            return Judgement(Answer.LATER, f"{peer} is not on this node's newest allowlist")
    if usurped:
        return Judgement(Answer.LATER, usurped)
    own = _judge_own_part(state, reports, roster)
    if own is not None:
        return own
    return _judge_again(rules, state, reports, now) if state.phase is Phase.REDUCE else _YES


def _terms_missing(reports: Reports, roster: Roster) -> Terms | None:
    """Return the amendment of `roster` that this node lacks, if any. A node does not vote for an
    amendment that it could not send to others, even if the roster is forced (SPEC.md S10).
    """
    return None if roster.terms in reports.terms else roster.terms


def _judge_own_part(state: LedgerState, reports: Reports, roster: Roster) -> Judgement | None:
    for part in roster.participants:
        if part.peer == reports.me:
            ready = reports.ready.get(reports.me)
            if ready is None or ready.step != state.step:
                return Judgement(Answer.LATER, "it includes this node, but this node is not ready")
            if (ready.tokens, ready.blocks) != (part.tokens, part.blocks):
                return Judgement(
                    Answer.NO, f"this node has {ready.tokens} tokens, not {part.tokens}"
                )
            if ready.named != part.claim:
                return Judgement(Answer.NO, "this node has made a newer claim")
    return None


def _judge_again(rules: Rules, state: LedgerState, reports: Reports, now: float) -> Judgement:
    """Decide whether to vote for abandoning the current reduce."""
    if result_is_stale(rules, reports, now):
        return _YES
    update = finished_update(state, reports)
    if update is not None and update in reports.held:
        return Judgement(Answer.LATER, "the exchange is done and this node has the result")
    known = failure_known(state, reports) or alone_too_long(rules, state, reports, now)
    if reports.failed_since is None and not known:
        return Judgement(Answer.LATER, "this node does not know that the exchange failed")
    return _YES


def _judge_skip(rules: Rules, state: LedgerState, reports: Reports, now: float) -> Judgement:
    given_up = _judge_again(rules, state, reports, now)
    if given_up.answer is not Answer.YES:
        return given_up
    if state.tries < rules.attempts_max:
        left = survivors(rules, state, reports)
        if len(left) >= rules.participants_min:
            return Judgement(Answer.LATER, f"{len(left)} peers could try again")
    return _YES


def holders_of(
    state: LedgerState, reports: Reports, update: Digest, proposer: PeerId
) -> tuple[PeerId, ...]:
    """Return the peers that should have `update`: those that reported it, the proposer, and the
    other participants. Peers that are up come first.
    """
    said = [report.peer for report in reports.done.values() if report.update == update]
    known = dict.fromkeys([*said, proposer, *(state.roster.peers if state.roster else ())])
    known.pop(reports.me, None)
    return tuple(sorted(known, key=lambda peer: peer in reports.down))
