"""A voter accepts, refuses or postpones a proposal, by the rules of SPEC.md and its own reports."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Commit,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Terms,
    Value,
)
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    AnyReport,
    KnownAmendments,
    Leaving,
    PeerDown,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    UpdateHeld,
)
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.accept import holders_of, may_accept
from p2ptrain.ledger.policy.blame import LEFT_OUT_REFUSED
from p2ptrain.ledger.policy.participants import survivors
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, D = peers("a b c d")
RULES = small_rules("a b c", participants_min=2)
GENESIS = chain_of(RULES, [])[1]
EVERYBODY = tuple(Participant(peer, 200, 2) for peer in (A, B, C))
OPENING = Roster(0, 0, (A, B, C), (), EVERYBODY)
REDUCING = chain_of(RULES, [OPENING])[1]
AGAIN = Roster(0, 1, (A, B), (), EVERYBODY[:2])
U = digest("u")
ME_READY = Ready(A, 0, 200, 2)
OTHERS_READY = (Ready(B, 0, 200, 2), Ready(C, 0, 200, 2))
ALL_READY = (ME_READY, *OTHERS_READY)


def verdict(
    state: LedgerState,
    value: Value,
    *events: AnyReport,
    now: float = 0.0,
    forced: bool = False,
    doubtful: bool = False,
    late: bool = False,
) -> Judgement:
    reports = Reports(A, done_since=0.0)
    for event in events:
        reports.note(event)
    return may_accept(
        RULES, state, reports, value, now, forced=forced, doubtful=doubtful, late=late
    )


YES = Judgement(Answer.YES, "it agrees with what this node knows")


MADE = (ReduceDone(B, 0, 0, U), ReduceDone(C, 0, 0, U))


def test_voter_accepts_a_commit_only_if_it_has_the_update() -> None:
    lacks = Judgement(Answer.LATER, "this node does not have the update yet", U)
    assert verdict(REDUCING, Commit(0, 0, U), *MADE) == lacks
    assert verdict(REDUCING, Commit(0, 0, U), *MADE, UpdateHeld(U)) == YES


UNMADE = Judgement(
    Answer.LATER, "this node does not know that most participants computed this update"
)


def test_commit_needs_results_of_most_participants_or_of_the_voter() -> None:
    commit, held = Commit(0, 0, U), UpdateHeld(U)
    assert verdict(REDUCING, commit, held) == UNMADE
    assert verdict(REDUCING, commit, held, MADE[0]) == UNMADE
    assert verdict(REDUCING, commit, held, MADE[0], ReduceDone(D, 0, 0, U)) == UNMADE
    assert verdict(REDUCING, commit, held, MADE[0], ReduceDone(C, 0, 0, digest("v"))) == UNMADE
    assert verdict(REDUCING, commit, held, MADE[0], ReduceDone(C, 0, 1, U)) == UNMADE
    assert verdict(REDUCING, commit, held, ReduceDone(A, 0, 0, U)) == YES
    assert verdict(REDUCING, commit, held, *MADE, PeerDown(B), PeerDown(C)) == YES


def test_forced_commit_is_accepted_without_reports_of_participants() -> None:
    commit, held = Commit(0, 0, U), UpdateHeld(U)
    assert verdict(REDUCING, commit, held, forced=True) == YES
    assert verdict(REDUCING, commit, held, forced=True, doubtful=True) == UNMADE


def test_voter_accepts_even_a_forced_commit_only_if_it_has_the_update() -> None:
    assert verdict(REDUCING, Commit(0, 0, U), forced=True).fetch == U
    assert verdict(REDUCING, Commit(0, 0, U), UpdateHeld(U), forced=True) == YES


def test_roster_that_names_an_amendment_needs_the_amendment() -> None:
    terms = Terms(1, 1, digest("amendment"))
    have = KnownAmendments(frozenset({terms}))
    other = KnownAmendments(frozenset({replace(terms, blocks=9)}))
    amending = replace(OPENING, terms=terms)
    later = Judgement(Answer.LATER, "this node does not have amendment 1 yet")
    assert verdict(GENESIS, amending, *ALL_READY) == later
    assert verdict(GENESIS, amending, *ALL_READY, other) == later
    assert verdict(GENESIS, amending, forced=True) == later
    assert verdict(GENESIS, amending, *ALL_READY, have) == YES
    assert verdict(GENESIS, amending, have, forced=True) == YES
    assert verdict(GENESIS, OPENING, *ALL_READY, have) == YES


def test_voter_accepts_an_update_unlike_its_own_only_if_forced() -> None:
    own: list[AnyReport] = [ReduceDone(A, 0, 0, digest("mine")), UpdateHeld(U)]
    got = verdict(REDUCING, Commit(0, 0, U), *own)
    assert got.answer is Answer.NO
    assert got.reason == f"this node computed update {digest('mine')[:8]}, not {U[:8]}"
    assert verdict(REDUCING, Commit(0, 0, U), *own, forced=True) == YES


def test_own_result_of_another_attempt_does_not_contradict_a_commit() -> None:
    own: list[AnyReport] = [ReduceDone(A, 0, 7, digest("mine")), UpdateHeld(U)]
    assert verdict(REDUCING, Commit(0, 0, U), *MADE, *own) == YES


S = digest("s")
SNAPPED = Commit(0, 0, U, SnapshotRef(0, S), REDUCING.digest)
UNVOUCHED = Judgement(Answer.LATER, f"this node does not know that a quorum has snapshot {S[:8]}")


def test_voter_refuses_a_snapshot_that_differs_from_its_own() -> None:
    held: list[AnyReport] = [*MADE, UpdateHeld(U)]
    assert verdict(REDUCING, SNAPPED, *held, SnapshotTaken(A, 0, S)) == YES
    another = SnapshotTaken(A, 0, digest("t"))
    assert verdict(REDUCING, SNAPPED, *held, another).answer is Answer.NO
    others = [SnapshotTaken(peer, 0, S) for peer in (B, C)]
    assert verdict(REDUCING, SNAPPED, *held, another, *others).answer is Answer.NO


def test_one_voters_report_does_not_certify_a_snapshot() -> None:
    held: list[AnyReport] = [*MADE, UpdateHeld(U)]
    one = SnapshotTaken(C, 0, S)
    assert verdict(REDUCING, SNAPPED, *held) == UNVOUCHED
    assert verdict(REDUCING, SNAPPED, *held, one) == UNVOUCHED
    assert verdict(REDUCING, SNAPPED, *held, one, SnapshotTaken(D, 0, S)) == UNVOUCHED
    assert verdict(REDUCING, SNAPPED, *held, one, SnapshotTaken(B, 0, digest("t"))) == UNVOUCHED
    assert verdict(REDUCING, SNAPPED, *held, one, SnapshotTaken(B, 1, S)) == UNVOUCHED


def test_voter_without_the_snapshot_believes_reports_of_a_quorum() -> None:
    said: list[AnyReport] = [*MADE, UpdateHeld(U), *(SnapshotTaken(peer, 0, S) for peer in (B, C))]
    assert verdict(REDUCING, SNAPPED, *said) == YES
    assert verdict(REDUCING, SNAPPED, *said, PeerDown(B)) == YES


def test_update_is_fetched_even_if_the_snapshot_is_not_confirmed_yet() -> None:
    assert verdict(REDUCING, SNAPPED, *MADE).fetch == U


def test_unconfirmed_snapshot_is_accepted_if_it_is_forced() -> None:
    held: list[AnyReport] = [*MADE, UpdateHeld(U)]
    assert verdict(REDUCING, SNAPPED, *held, forced=True, doubtful=True) == UNVOUCHED
    assert verdict(REDUCING, SNAPPED, *held, forced=True) == YES


def test_invalid_value_is_refused_even_if_it_is_forced() -> None:
    for forced in (False, True):
        got = verdict(GENESIS, Commit(0, 0, U), UpdateHeld(U), forced=forced)
        assert got == Judgement(Answer.NO, "there is no exchange to commit")


def test_voter_refuses_to_be_dropped_while_it_is_up() -> None:
    without_me = Roster(0, 0, (B, C), (), EVERYBODY[1:])
    assert verdict(GENESIS, without_me).answer is Answer.NO
    assert verdict(GENESIS, without_me, Leaving(A), *ALL_READY) == YES
    assert verdict(GENESIS, without_me, AllowedPeers(frozenset({B, C})), *ALL_READY) == YES
    assert verdict(GENESIS, without_me, forced=True) == YES


WITHOUT_C = Roster(0, 0, (A, B), (), EVERYBODY[:2])
C_IS_HERE = Judgement(Answer.LATER, "it drops c, but this node considers that peer up")


def test_member_that_is_up_is_not_dropped() -> None:
    assert verdict(GENESIS, WITHOUT_C, *ALL_READY) == C_IS_HERE
    assert verdict(GENESIS, WITHOUT_C, *ALL_READY, PeerDown(C)) == YES
    assert verdict(GENESIS, WITHOUT_C, *ALL_READY, Leaving(C)) == YES
    assert verdict(GENESIS, WITHOUT_C, *ALL_READY, AllowedPeers(frozenset({A, B}))) == YES
    learner = chain_of(RULES, [Roster(0, 0, (A, B, C), (D,))])[1]
    drops_d = Judgement(Answer.LATER, "it drops d, but this node considers that peer up")
    assert verdict(learner, OPENING, *ALL_READY) == drops_d


def test_member_that_several_peers_report_as_silent_can_be_dropped() -> None:
    """A voter that is not connected to the dead peer learns of the death from the reports of
    others. If the accused peer reports something itself, it is not dead.
    """
    everybody = Roster(0, 0, (A, B, C, D), (), (*EVERYBODY, Participant(D, 200, 2)))
    open_state = chain_of(small_rules("a b c d"), [everybody])[1]
    without_d = Roster(0, 1, (A, B, C), (), EVERYBODY)
    said = [ReduceFailed(peer, 0, 0, (D,)) for peer in (A, B)]
    here = Judgement(Answer.LATER, "it drops d, but this node considers that peer up")
    assert verdict(open_state, without_d, said[0]) == here
    assert verdict(open_state, without_d, *said, ME_READY) == YES
    assert verdict(open_state, without_d, *said, ME_READY, ReduceFailed(D, 0, 0)) == here


def test_doubtful_forced_roster_cannot_drop_a_live_member() -> None:
    """A doubtful roster may be forced although only a lying proposer has accepted it. A roster that
    is not doubtful may already be chosen, so it must be accepted.
    """
    assert verdict(GENESIS, WITHOUT_C, ME_READY, forced=True, doubtful=True) == C_IS_HERE
    assert verdict(GENESIS, WITHOUT_C, ME_READY, forced=True) == YES


def test_reports_cannot_delay_a_roster_after_the_doubt_period() -> None:
    assert verdict(GENESIS, WITHOUT_C, ME_READY, late=True) == YES
    assert verdict(GENESIS, Roster(0, 0, (B, C), ()), late=True).answer is Answer.NO


def test_reduce_needs_most_of_the_members_that_can_take_part() -> None:
    rules_of_one = replace(RULES, participants_min=1)
    alone = Roster(0, 0, (A, B, C), (), (EVERYBODY[1],))
    reports = Reports(A)
    for peer in (A, B, C):
        reports.note(Ready(peer, 0, 200, 2))
    later = Judgement(Answer.LATER, "it leaves out 2 of 3 peers that could take part")
    assert may_accept(rules_of_one, GENESIS, reports, alone, 0.0, forced=False) == later
    reports.down.add(C)
    assert may_accept(rules_of_one, GENESIS, reports, alone, 0.0, forced=False) == YES


def test_one_accuser_cannot_exclude_several_participants() -> None:
    """If one accuser could exclude several participants, the first peer that abandons a reduce
    could accuse everybody except an accomplice, and average only with the accomplice.
    """
    rules = small_rules("a b c d e", participants_min=2)
    names = peers("a b c d e")
    everybody = tuple(Participant(peer, 200, 2) for peer in names)
    opened = chain_of(rules, [Roster(0, 0, names, (), everybody)])[1]
    reports = Reports(A)
    reports.note(ReduceFailed(names[4], 0, 0, names[:3]))
    again = Roster(0, 1, names, (), everybody[3:])
    later = Judgement(Answer.LATER, "it leaves out 3 of 5 peers that could take part")
    assert may_accept(rules, opened, reports, again, 0.0, forced=False) == later
    assert survivors(rules, opened, reports) == everybody[:4], (
        "the peer that accuses many others must be excluded"
    )
    for peer in (A, B, D):
        reports.note(ReduceFailed(peer, 0, 0, (C,)))
    assert survivors(rules, opened, reports) == (*everybody[:2], *everybody[3:])


def test_two_peers_that_cannot_connect_go_on_one_by_one() -> None:
    """C is a seed that both are connected to, so the three can vote. In an exchange of A and B, one
    accuses the other and the other nobody; see `test_arranging` for why they swap roles. Then one
    of them exchanges alone, so with one participant as the minimum, both make progress."""
    rules = small_rules("a b c", participants_min=1)
    two = Roster(0, 0, (A, B, C), (), EVERYBODY[:2])
    for accused, alone in ((B, EVERYBODY[0]), (A, EVERYBODY[1])):
        other = alone.peer
        failed = ReduceFailed(other, 0, 0, (accused,)), ReduceFailed(accused, 0, 0)
        opened = chain_of(rules, [two])[1]
        reports = Reports(C)
        for event in (*OTHERS_READY[:1], ME_READY, *failed):
            reports.note(event)
        assert survivors(rules, opened, reports) == (alone,)
        again = replace(two, attempt=1, participants=(alone,))
        assert may_accept(rules, opened, reports, again, 0.0, forced=False) == YES
        reports.note(ReduceDone(other, 0, 1, U))
        reports.note(UpdateHeld(U))
        retried = chain_of(rules, [two, again])[1]
        assert may_accept(rules, retried, reports, Commit(0, 1, U), 0.0, forced=False) == YES


def test_participants_take_turns_sitting_out_after_two_failures() -> None:
    """A peer may spoil every attempt without being accused, for example by sending different
    averages to different peers. So every participant must sit out sometimes.
    """
    rules = small_rules("a b c", participants_min=2, attempts_max=4)
    taking = []
    for step in range(3):
        at = replace(chain_of(rules, [replace(OPENING, attempt=n) for n in range(3)])[1], step=step)
        for tries in (2, 3):
            again = replace(at, attempt=tries + at.tried_before)
            taking.append(
                "".join(sorted(each.peer for each in survivors(rules, again, Reports(A))))
            )
    assert taking == ["ab", "bc", "bc", "ac", "ac", "ab"]


def test_reduce_is_not_opened_before_a_quorum_is_ready() -> None:
    two = Roster(0, 0, (A, B, C, D), (), (*EVERYBODY[:1], *EVERYBODY[2:]))
    four = chain_of(small_rules("a b c d"), [])[1]
    some = (ME_READY, OTHERS_READY[1])
    hasty = Judgement(Answer.LATER, "it opens an exchange before a quorum is ready")
    assert verdict(four, two, OTHERS_READY[1]) == hasty
    reports = Reports(B)
    for event in some:
        reports.note(event)
    rules = small_rules("a b c d", quorum="two-thirds")
    assert may_accept(rules, four, reports, two, 0.0, forced=False) == hasty
    assert may_accept(rules, four, reports, two, 0.0, forced=True, doubtful=True) == hasty
    for peer in (C, D):
        reports.note(PeerDown(peer))
    assert may_accept(rules, four, reports, two, 0.0, forced=True) == YES


def test_reduce_is_not_opened_too_soon_after_skipped_steps() -> None:
    """After skipped steps, an honest proposer pauses for the full time. Voters refuse rosters only
    in the first half of the pause.
    """
    reports = Reports(A, skips=3, enough_since=100.0)
    for event in ALL_READY:
        reports.note(event)
    rests_s = 2 * RULES.grace_s
    too_soon = "it opens an exchange too soon after 3 skipped outer steps"
    judged = partial(may_accept, RULES, GENESIS, reports, OPENING, forced=False)
    assert judged(100.0 + rests_s / 2 - 0.01) == Judgement(Answer.LATER, too_soon)
    assert judged(100.0 + rests_s / 2) == YES


def test_roster_must_contain_the_reported_token_counts() -> None:
    bent = replace(OPENING, participants=(*EVERYBODY[:2], Participant(C, 199, 2)))
    unsaid = Judgement(Answer.LATER, "this node does not know that c trained on 199 tokens")
    assert verdict(GENESIS, bent, *ALL_READY) == unsaid
    assert verdict(GENESIS, bent, *ALL_READY, forced=True, doubtful=True) == unsaid
    assert verdict(GENESIS, bent, *ALL_READY, Ready(C, 0, 199, 2)) == YES
    again = replace(AGAIN, participants=(EVERYBODY[0], Participant(B, 199, 2)))
    failed = (ME_READY, PeerDown(C), ReduceFailed(B, 0, 0))
    assert verdict(REDUCING, AGAIN, *failed) == YES, "the roster in force already has these numbers"
    assert verdict(REDUCING, again, *failed).answer is Answer.LATER


def test_peer_missing_from_our_allowlist_is_not_admitted_yet() -> None:
    admits = Roster(0, 0, (A, B, C), (D,))
    got = verdict(GENESIS, admits, AllowedPeers(frozenset({A, B, C})))
    assert got == Judgement(Answer.LATER, "d is not on this node's newest allowlist")
    assert verdict(GENESIS, admits, AllowedPeers(frozenset({A, B, C, D}))) == YES


@pytest.mark.parametrize(
    ("report", "answer"),
    [
        (ME_READY, Answer.YES),
        (Ready(A, 0, 150, 2), Answer.NO),
        (Ready(A, 1, 200, 2), Answer.LATER),
        (None, Answer.LATER),
    ],
    ids=["as reported", "other numbers", "another step", "not ready"],
)
def test_roster_must_contain_this_nodes_own_numbers(report: Ready | None, answer: Answer) -> None:
    events = OTHERS_READY if report is None else (*OTHERS_READY, report)
    assert verdict(GENESIS, OPENING, *events).answer is answer


def test_retry_is_accepted_only_after_a_reported_failure() -> None:
    waits = Judgement(Answer.LATER, "this node does not know that the exchange failed")
    assert verdict(REDUCING, AGAIN, ME_READY, PeerDown(C)) == waits
    assert verdict(REDUCING, AGAIN, ME_READY, PeerDown(C), ReduceFailed(B, 0, 0)) == YES


def test_retry_is_refused_for_the_grace_period_if_results_were_reported() -> None:
    done = [ReduceDone(peer, 0, 0, U) for peer in (A, C)]
    events: list[AnyReport] = [ME_READY, ReduceFailed(B, 0, 0), *done, UpdateHeld(U), PeerDown(C)]
    assert verdict(REDUCING, AGAIN, *events).answer is Answer.LATER
    assert verdict(REDUCING, AGAIN, *events, now=RULES.grace_s) == YES


def test_retry_is_accepted_if_too_few_can_have_the_same_result_as_this_node() -> None:
    own: list[AnyReport] = [ME_READY, ReduceDone(A, 0, 0, U), UpdateHeld(U)]
    assert verdict(REDUCING, AGAIN, *own, ReduceFailed(B, 0, 0)).answer is Answer.LATER
    assert verdict(REDUCING, AGAIN, *own, ReduceFailed(B, 0, 0), PeerDown(C)) == YES
    assert verdict(REDUCING, AGAIN, *own, PeerDown(B), PeerDown(C)) == YES


def test_skip_is_accepted_only_when_no_retry_is_possible() -> None:
    all_failed = [ReduceFailed(peer, 0, 0) for peer in (A, B, C)]
    assert verdict(REDUCING, Skip(0)).answer is Answer.LATER
    again = Judgement(Answer.LATER, "3 peers could try again")
    assert verdict(REDUCING, Skip(0), *all_failed) == again
    assert verdict(REDUCING, Skip(0), *all_failed, PeerDown(B), PeerDown(C)) == YES


def test_skip_is_accepted_when_attempts_are_used_up() -> None:
    last = chain_of(RULES, [Roster(0, n, (A, B, C), (), EVERYBODY) for n in range(3)])[1]
    assert verdict(last, Skip(0), ReduceFailed(B, 0, 2)) == YES


def test_update_is_requested_first_from_live_peers_that_reported_it() -> None:
    reports = Reports(A)
    for event in (ReduceDone(B, 0, 0, U), ReduceDone(A, 0, 0, U), PeerDown(B)):
        reports.note(event)
    assert holders_of(REDUCING, reports, U, D) == (D, C, B)


def test_ready_peer_is_not_left_out_for_ever() -> None:
    """The limit does not depend on the failures that the proposer remembers (SPEC.md S11, S13)."""
    rules = small_rules("a b c", participants_min=2)
    without_c = Roster(0, 0, (A, B, C), (), EVERYBODY[:2])
    reports = Reports(B)
    for peer in (A, B, C):
        reports.note(Ready(peer, 0, 200, 2))
    reports.blame.kept_out[C] = LEFT_OUT_REFUSED - 1
    assert may_accept(rules, GENESIS, reports, without_c, 0.0, forced=False) == YES
    reports.blame.kept_out[C] = LEFT_OUT_REFUSED
    later = f"it leaves out {C}, which was ready for each of the last {LEFT_OUT_REFUSED} commits"
    judged = may_accept(rules, GENESIS, reports, without_c, 0.0, forced=False)
    assert judged == Judgement(Answer.LATER, later)
    assert may_accept(rules, GENESIS, reports, without_c, 0.0, forced=False, late=True) == YES


def test_doubted_proposer_cannot_readmit_itself() -> None:
    rules = small_rules("a b c", participants_min=2)
    reports = Reports(B)
    for peer in (A, B, C):
        reports.note(Ready(peer, 0, 200, 2))
    for _ in range(2):
        reports.blame.failed((A, B, C), {A: (C,), B: (C,)})
    opening = Roster(0, 0, (A, B, C), (), EVERYBODY[:3])

    def judged(proposer: PeerId, *, late: bool = False) -> Answer:
        known = (rules, GENESIS, reports, opening, 0.0)
        return may_accept(*known, forced=False, late=late, proposer=proposer).answer

    assert judged(C) is Answer.LATER
    assert judged(C, late=True) is Answer.YES
    needs_all = replace(rules, participants_min=3)
    known = (needs_all, GENESIS, reports, opening, 0.0)
    assert may_accept(*known, forced=False, proposer=C) == YES, (
        "c is needed, since all three must take part"
    )
    reports.blame.failures.clear()
    reports.blame.failed((A, B, C), {B: (C,)})
    reports.blame.failed((A, B, C), {B: (C,)})
    assert judged(A) is Answer.YES, "a voter may refuse only the doubted proposer itself"
