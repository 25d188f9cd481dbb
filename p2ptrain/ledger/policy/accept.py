"""Decide whether this node may vote for a proposal: a pure function of the agreed state and the
reports.

There are three answers: yes, no, or later. "Later" means that this node lacks something that may
still arrive (bytes, a report, a newer allowlist); the proposal is then judged again at each event.
Three rules are about safety. This node must have the update of a Commit and the amendment of a
roster, a quorum must vouch for a snapshot, and a roster must not drop peers that are here. The
other rules limit the harm that a hasty or broken proposer can do. They are lenient where views may
differ: a refusal that is too strict would cost more than a wrong roster, which costs one attempt.
"""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.founders import founders_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Branch, Commit, Heal, Roster, Terms, Value
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.membership import dropped_for_nothing, too_few_left, unasked
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
from p2ptrain.ledger.policy.reports import View
from p2ptrain.ledger.policy.rest import rested_at_least_until
from p2ptrain.ledger.policy.snapshot_votes import is_vouched_for

_YES = Judgement(Answer.YES, "it agrees with what this node knows")


def may_accept(
    rules: Rules,
    state: LedgerState,
    view: View,
    value: Value,
    now: float,
    *,
    forced: bool,
    doubtful: bool = False,
    late: bool = False,
    proposer: PeerId | None = None,
) -> Judgement:
    """Decide whether this node may accept `value` now.

    - `forced`: the promises leave the proposer no choice.
    - `doubtful`: further promises could still give it a choice. A Commit is then still compared
      with this node's own results, and a roster with the peers that it knows to be here: a liar may
      have made up either of them.
    - `late`: the height has waited so long that different views must not delay it any longer.
    - `proposer`: the peer that proposes `value`. If `value` is forced, the peer that proposed it in
      the round that forces it.
    """
    fault = why_invalid(rules, state, value)
    if fault:
        return Judgement(Answer.NO, fault)
    if isinstance(value, Branch):
        return Judgement(Answer.NO, "there is no vote on a branch: all of its voters sign it")
    if isinstance(value, Heal):
        return _judge_heal(view, value, forced=forced)
    if isinstance(value, Commit):
        return _judge_commit(rules, state, view, value, forced=forced and not doubtful)
    if isinstance(value, Roster) and (missing := _terms_missing(view, value)) is not None:
        return Judgement(Answer.LATER, f"this node does not have amendment {missing.number} yet")
    if isinstance(value, Roster):
        if few := _too_few_left(rules, state, view, value):
            return Judgement(Answer.LATER, few)
        fault = _dropped_for_nothing(rules, state, view, value)
        fault = fault or ("" if forced else _unasked(rules, state, view, value))
        fault = fault or ("" if late else _usurped(rules, state, view, value, now))
        fault = fault or ("" if late else _self_serving(rules, state, view, value, proposer))
        if forced:
            return Judgement(Answer.LATER, fault) if fault and doubtful else _YES
        return _judge_roster(rules, state, view, value, now, fault)
    if forced:
        return _YES
    return _judge_skip(rules, state, view, now)


def _judge_heal(view: View, heal: Heal, *, forced: bool) -> Judgement:
    """Judge a Heal. A voter accepts it only after it has verified a chain that outranks this branch
    (SPEC.md B6). If the Heal is forced, any such chain is enough: the chain that it names may have
    healed into another one in the meantime.
    """
    parting = view.outranked_by
    if parting is None or not (forced or parting.digest == heal.entry):
        return Judgement(Answer.LATER, "this node has not verified that chain")
    return _YES


def _judge_commit(
    rules: Rules, state: LedgerState, view: View, commit: Commit, *, forced: bool
) -> Judgement:
    reason = "" if forced else _contradicted(view, commit)
    if reason:
        return Judgement(Answer.NO, reason)
    if not forced and not is_made(state, view, commit.update):
        return Judgement(
            Answer.LATER, "this node does not know that most participants computed this update"
        )
    if commit.update not in view.held:
        return Judgement(Answer.LATER, "this node does not have the update yet", commit.update)
    named = commit.snapshot
    if not forced and named is not None and not is_vouched_for(rules, state, view, named):
        return Judgement(
            Answer.LATER, f"this node does not know that a quorum has snapshot {named.digest[:8]}"
        )
    return _YES


def _contradicted(view: View, commit: Commit) -> str:
    """Return in words how this node's own results contradict `commit`; empty if they do not."""
    own = view.done.get(view.me)
    mine = own is not None and (own.step, own.attempt) == (commit.step, commit.attempt)
    if own is not None and mine and own.update != commit.update:
        return f"this node computed update {own.update[:8]}, not {commit.update[:8]}"
    if commit.snapshot is not None:
        taken = view.own_snapshots.get(commit.snapshot.step)
        if taken is not None and taken != commit.snapshot.digest:
            return f"this node's snapshot of step {commit.snapshot.step} is {taken[:8]}"
    return ""


def _too_few_left(rules: Rules, state: LedgerState, view: View, roster: Roster) -> str:
    founders = founders_of(rules)
    return "" if founders is None else too_few_left(founders, state, view, roster)


def _dropped_for_nothing(rules: Rules, state: LedgerState, view: View, roster: Roster) -> str:
    founders = founders_of(rules)
    return "" if founders is None else dropped_for_nothing(founders, state, view, roster)


def _unasked(rules: Rules, state: LedgerState, view: View, roster: Roster) -> str:
    return unasked(state, view, roster) if rules.founders_vote else ""


def _usurped(rules: Rules, state: LedgerState, view: View, roster: Roster, now: float) -> str:
    """Return in words which peer the roster drops, or leaves out of the reduce, without a reason
    known to this node (SPEC.md S11); empty if there is none.
    """
    if stranger := _unasked(rules, state, view, roster):
        return stranger
    names, taking = set(roster.members), set(roster.peers)
    opened = state.roster
    fallen = suspicion_of(state, view).fallen(len(opened.peers)) if opened is not None else set()
    excused = names | view.down | fallen | {view.me}
    for peer in state.members:
        if peer not in excused and view.stays(peer):
            return f"it drops {peer}, but this node considers that peer up"
    if not roster.participants:
        return ""
    if opened is None and (hasty := _hasty(rules, state, view, now)):
        return hasty
    able = set(
        could_take_part(rules, state, view)
        if opened is not None
        else (part.peer for part in readiness(rules, state, view).contributors)
    )
    if 2 * len(able - taking) > len(able):
        return f"it leaves out {len(able - taking)} of {len(able)} peers that could take part"
    for peer in sorted(able - taking):
        if (count := view.blame.kept_out.get(peer, 0)) >= view.blame.refused_after(peer):
            return f"it leaves out {peer}, which was ready for each of the last {count} commits"
    return _misquoted(state, view, roster)


def _self_serving(
    rules: Rules, state: LedgerState, view: View, roster: Roster, proposer: PeerId | None
) -> str:
    """Return in words why the proposer should not take part with these other peers; empty if it may
    (S13).

    Without this rule, a voter that spoils every reduce would readmit itself, or the peer that it
    accuses, each time it proposes. The rule does not apply to other peers: nodes remember different
    failures, and honest proposers must not block each other because of that.
    """
    if proposer is None or proposer not in roster.peers:
        return ""
    under_way = None
    if state.roster is not None:
        under_way = view.blame.failure(state.roster.peers, view.accusations(state.roster))
    if view.blame.against(proposer, frozenset(roster.peers), under_way) < DOUBT_MIN:
        return ""
    own = (
        first_participants(rules, readiness(rules, state, view))
        if state.roster is None
        else survivors(rules, state, view)
    )
    chosen = frozenset(part.peer for part in own)
    if view.blame.against(proposer, chosen, under_way) >= DOUBT_MIN:
        return ""  # This node would let it take part too, since there are too few others.
    return f"its proposer {proposer} takes part, although this node doubts it"


def _hasty(rules: Rules, state: LedgerState, view: View, now: float) -> str:
    """Return in words why it is too early to open a reduce; empty if it is not. Without this rule,
    the first peer to claim that it is ready could average alone without having trained. It could
    also open step after step that then gets skipped.
    """
    have = readiness(rules, state, view)
    if have.awaited and not have.enough:
        return "it opens an exchange before a quorum is ready"
    if now < rested_at_least_until(rules, view):
        return f"it opens an exchange too soon after {view.skips} skipped outer steps"
    return ""


def _misquoted(state: LedgerState, view: View, roster: Roster) -> str:
    """Return in words for which participant the numbers differ from its report; empty if there is
    none. Such a peer would have to report that its work is lost.
    """
    known = set(state.roster.participants) if state.roster is not None else set()
    for part in roster.participants:
        ready = view.ready.get(part.peer)
        said = ready is not None and (ready.step, ready.tokens, ready.blocks)
        is_known = part.peer == view.me or part in known
        if not is_known and said != (state.step, part.tokens, part.blocks):
            return f"this node does not know that {part.peer} trained {part.tokens} tokens"
    return ""


def _judge_roster(
    rules: Rules, state: LedgerState, view: View, roster: Roster, now: float, usurped: str
) -> Judgement:
    me = view.me
    if state.is_member(me) and me not in roster.members and view.stays(me):
        return Judgement(Answer.NO, f"it drops {me}, which is this node")
    for peer in roster.members:
        evidence = view.accused.get(peer)
        if evidence is not None:
            return Judgement(Answer.NO, f"there is evidence against {peer}", evidence=evidence)
        if not state.is_member(peer) and not view.allows(peer):
            return Judgement(Answer.LATER, f"{peer} is not on this node's newest allowlist")
    if usurped:
        return Judgement(Answer.LATER, usurped)
    own = _judge_own_part(state, view, roster)
    if own is not None:
        return own
    return _judge_again(rules, state, view, now) if state.phase is Phase.REDUCE else _YES


def _terms_missing(view: View, roster: Roster) -> Terms | None:
    """Return the amendment of `roster` that this node lacks, if any. A node does not vote for terms
    that it could not send to others, even if the roster is forced (S10).
    """
    return None if roster.terms in view.terms else roster.terms


def _judge_own_part(state: LedgerState, view: View, roster: Roster) -> Judgement | None:
    for part in roster.participants:
        if part.peer == view.me:
            ready = view.ready.get(view.me)
            if ready is None or ready.step != state.step:
                return Judgement(Answer.LATER, "it includes this node, but this node is not ready")
            if (ready.tokens, ready.blocks) != (part.tokens, part.blocks):
                return Judgement(
                    Answer.NO, f"this node has {ready.tokens} tokens, not {part.tokens}"
                )
    return None


def _judge_again(rules: Rules, state: LedgerState, view: View, now: float) -> Judgement:
    """Decide whether the current reduce may be abandoned."""
    if result_is_stale(rules, view, now):
        return _YES
    update = finished_update(state, view)
    if update is not None and update in view.held:
        return Judgement(Answer.LATER, "the exchange is done and this node has the result")
    known = failure_known(state, view) or alone_too_long(rules, state, view, now)
    if view.failed_since is None and not known:
        return Judgement(Answer.LATER, "this node does not know that the exchange failed")
    return _YES


def _judge_skip(rules: Rules, state: LedgerState, view: View, now: float) -> Judgement:
    given_up = _judge_again(rules, state, view, now)
    if given_up.answer is not Answer.YES:
        return given_up
    if state.tries < rules.attempts_max:
        left = survivors(rules, state, view)
        if len(left) >= rules.participants_min:
            return Judgement(Answer.LATER, f"{len(left)} peers could try again")
    return _YES


def holders_of(
    state: LedgerState, view: View, update: Digest, proposer: PeerId
) -> tuple[PeerId, ...]:
    """Return the peers that should have `update`, live ones first: those that reported it, the
    proposer, and the other participants.
    """
    said = [report.peer for report in view.done.values() if report.update == update]
    known = dict.fromkeys([*said, proposer, *(state.roster.peers if state.roster else ())])
    known.pop(view.me, None)
    return tuple(sorted(known, key=lambda peer: peer in view.down))
