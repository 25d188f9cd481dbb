"""The proposals of a node, and the peers that it waits for, in different situations."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Skip, SnapshotRef, Value
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    AnyReport,
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    Staying,
    UpdateHeld,
)
from p2ptrain.ledger.policy.policy import what_to_propose
from p2ptrain.ledger.policy.reduce_results import confessed
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, D, E = peers("a b c d e")
RULES = small_rules("a b c", participants_min=2)
GENESIS = chain_of(RULES, [])[1]
EVERYBODY = tuple(Participant(peer, 200, 2) for peer in (A, B, C))
REDUCING = chain_of(RULES, [Roster(0, 0, (A, B, C), (), EVERYBODY)])[1]
LAST_ATTEMPT = chain_of(RULES, [Roster(0, n, (A, B, C), (), EVERYBODY) for n in range(3)])[1]


def ready(*names: PeerId, step: int = 0) -> list[AnyReport]:
    return [Ready(name, step, 200, 2) for name in names]


def wish(
    state: LedgerState,
    events: list[AnyReport],
    *,
    now: float = 0.0,
    enough_since: float | None = None,
    failed_since: float | None = None,
) -> Wish:
    reports = Reports(A, enough_since=enough_since, failed_since=failed_since)
    for event in events:
        reports.note(event)
    return what_to_propose(RULES, state, reports, now)


def opening(names: tuple[PeerId, ...], *, voters: tuple[PeerId, ...] = (A, B, C)) -> Roster:
    return Roster(0, 0, voters, (), tuple(Participant(name, 200, 2) for name in names))


# ── gathering ────────────────────────────────────────────────────────────────────────────────────


def test_proposer_waits_for_members_that_are_training() -> None:
    assert wish(GENESIS, ready(A)) == Wish(None, "members are still training", (B, C))


def test_reduce_is_opened_when_all_members_are_ready() -> None:
    got = wish(GENESIS, ready(A, B, C))
    assert got == Wish(opening((A, B, C)), "all members are ready")


def test_ready_quorum_waits_for_the_others_for_the_grace_period() -> None:
    got = wish(GENESIS, ready(A, B), now=3.0, enough_since=1.0)
    assert got == Wish(
        None, "a quorum is ready; waiting for the others until the grace period is over", (C,), 11.0
    )


def test_reduce_needs_a_voter_that_stays() -> None:
    learning = chain_of(RULES, [Roster(0, 0, (A,), (D, E))])[1]
    got = wish(learning, [*ready(A, D, E), Leaving(A)])
    assert got == Wish(None, "all voters are leaving or down")


def test_late_members_are_left_out_after_the_grace_but_stay_members() -> None:
    got = wish(GENESIS, ready(A, B), now=11.0, enough_since=1.0)
    assert got.value == opening((A, B))
    assert got.reason == "a quorum was ready 10 s ago; starting without the others"


def test_member_that_is_down_is_dropped_without_a_wait() -> None:
    got = wish(GENESIS, [*ready(A, B, C), PeerDown(C)])
    assert got.value == opening((A, B), voters=(A, B))


def test_member_that_is_up_again_takes_part_again() -> None:
    got = wish(GENESIS, [*ready(A, B, C), PeerDown(C), PeerUp(C)])
    assert got.value == opening((A, B, C))


def test_too_few_participants_wait_for_more() -> None:
    got = wish(GENESIS, [*ready(A), PeerDown(B), PeerDown(C)])
    assert got == Wish(None, "1 more participant needed")


def test_seed_votes_but_does_not_take_part_in_reduces() -> None:
    got = wish(GENESIS, [*ready(A, B), Ready(C, 0, 0, 0)])
    assert got.value == opening((A, B))


@pytest.mark.parametrize(
    "report",
    [Ready(C, 0, 200, 3), Ready(C, 0, 201, 2), Ready(C, 0, 0, 2), Ready(C, 0, 5, 0)],
    ids=["more blocks than leased", "more tokens than blocks", "no tokens", "no blocks"],
)
def test_contribution_beyond_its_lease_is_left_out(report: Ready) -> None:
    assert wish(GENESIS, [*ready(A, B), report]).value == opening((A, B))


def test_joiner_is_admitted_at_once_as_a_learner() -> None:
    got = wish(GENESIS, [*ready(A), Joining(D)])
    assert got == Wish(Roster(0, 0, (A, B, C), (D,)), "1 join, 0 leave")


@pytest.mark.parametrize(
    "events",
    [
        [AllowedPeers(frozenset({A, B, C})), Joining(D)],
        [Joining(D), PeerDown(D)],
        [Joining(D), Leaving(D)],
    ],
    ids=["not allowed", "down", "leaving again"],
)
def test_peer_that_cannot_join_is_not_admitted(events: list[AnyReport]) -> None:
    assert wish(GENESIS, events) == Wish(None, "members are still training", (A, B, C))


def test_leaving_voter_is_dropped_while_it_can_still_vote() -> None:
    got = wish(GENESIS, [*ready(A), Leaving(C)])
    assert got == Wish(Roster(0, 0, (A, B), ()), "0 join, 1 leave")


def test_withdrawn_goodbye_is_ignored() -> None:
    assert wish(GENESIS, [*ready(A), Leaving(C), Staying(C)]) == wish(GENESIS, ready(A))
    assert wish(GENESIS, [*ready(A), Staying(C)]) == wish(GENESIS, ready(A))


def test_leaving_learner_is_dropped_so_that_it_can_return() -> None:
    admitting, letting_go = Roster(0, 0, (A, B, C), (D,)), Roster(0, 0, (A, B, C), ())
    with_learner = chain_of(RULES, [admitting])[1]
    assert wish(with_learner, [*ready(A), Leaving(D)]) == Wish(letting_go, "0 join, 1 leave")
    let_go = chain_of(RULES, [admitting, letting_go])[1]
    assert wish(let_go, [*ready(A), Joining(D)]) == Wish(admitting, "1 join, 0 leave")


def test_member_removed_from_the_allowlist_is_dropped() -> None:
    got = wish(GENESIS, [*ready(A, B), AllowedPeers(frozenset({A, B}))])
    assert got.value == opening((A, B), voters=(A, B))


def test_learner_admitted_during_a_step_is_not_waited_for() -> None:
    values: list[Value] = [
        Roster(0, 0, (A, B, C), (), EVERYBODY),
        Commit(0, 0, digest("u")),
        Roster(1, 0, (A, B, C), (D,)),
    ]
    state = chain_of(RULES, values)[1]
    without = wish(state, ready(A, B, C, step=1)).value
    assert isinstance(without, Roster)
    assert (without.peers, without.learners) == ((A, B, C), (D,))
    together = wish(state, ready(A, B, C, D, step=1)).value
    assert isinstance(together, Roster)
    assert together.peers == (A, B, C, D)


def test_promoted_learners_never_outnumber_the_remaining_voters() -> None:
    rules = small_rules("a", participants_min=1)
    parts = tuple(Participant(peer, 200, 2) for peer in (A, B, C, D))
    values: list[Value] = [
        Roster(0, 0, (A,), (B, C, D)),
        Roster(0, 0, (A,), (B, C, D), parts),
        Commit(0, 0, digest("u")),
    ]
    state = chain_of(rules, values)[1]
    reports = Reports(A)
    for event in ready(A, B, C, D, step=1):
        reports.note(event)
    got = what_to_propose(rules, state, reports, 0.0).value
    assert isinstance(got, Roster)
    assert (got.voters, got.learners) == ((A, B), (C, D))


def test_learners_are_not_promoted_while_a_voter_is_down() -> None:
    """If the learners were promoted now and then vanished, only two of eight voters would be up."""
    four, newcomers = (A, B, C, D), peers("e f g h")
    rules = small_rules("a b c d", participants_min=2)
    parts = tuple(Participant(peer, 200, 2) for peer in (*four, *newcomers))
    values: list[Value] = [
        Roster(0, 0, four, newcomers),
        Roster(0, 0, four, newcomers, parts),
        Commit(0, 0, digest("u")),
    ]
    state = chain_of(rules, values)[1]
    wished = []
    both_down: list[AnyReport] = [PeerDown(C), PeerDown(D)]
    for down in (both_down, []):
        reports = Reports(A)
        for event in [*down, Joining(PeerId("i"))]:
            reports.note(event)
        got = what_to_propose(rules, state, reports, 0.0).value
        assert isinstance(got, Roster)
        wished.append((got.voters, got.learners))
    admitted = PeerId("i")
    assert wished == [(four, (*newcomers, admitted)), ((*four, *newcomers), (admitted,))]


def test_reports_of_other_steps_are_ignored() -> None:
    assert wish(GENESIS, ready(A, B, C, step=1)).waiting_for == (A, B, C)


# ── reducing ─────────────────────────────────────────────────────────────────────────────────────


def failed(*names: PeerId, suspects: tuple[PeerId, ...] = (), attempt: int = 0) -> list[AnyReport]:
    return [ReduceFailed(name, 0, attempt, suspects) for name in names]


def rested(skips: int, now: float, *events: AnyReport) -> Wish:
    reports = Reports(A, enough_since=1.0, skips=skips)
    for event in (*ready(A, B, C), *events):
        reports.note(event)
    return what_to_propose(RULES, GENESIS, reports, now)


def test_each_skip_lengthens_the_wait_before_the_next_reduce() -> None:
    """The first wait is the grace period of 10 s, and the longest wait is an hour."""
    assert [rested(skips, 1.0).look_again_at for skips in (0, 1, 2, 3, 4, 12, 10**6)] == [
        *(None, None, 11.0, 21.0, 41.0, 3601.0, 3601.0)
    ]
    assert rested(2, 10.9).reason == (
        "waiting before the next attempt, since 2 outer steps were skipped"
    )
    assert rested(2, 11.0).value == opening((A, B, C))


def test_joiner_is_admitted_during_the_wait_after_skips() -> None:
    assert rested(2, 1.0, Joining(D)).value == Roster(0, 0, (A, B, C), (D,))


def test_skips_are_counted_until_the_next_commit() -> None:
    values: list[Value] = []
    for step in range(4):
        values.append(Roster(step, 0, (A, B, C), (), EVERYBODY))
        values.append(Commit(step, 0, digest("u")) if step == 2 else Skip(step))
    states = [chain_of(RULES, values[:count])[1] for count in range(len(values) + 1)]
    reports, counted = Reports(A), []
    for before, state in pairwise(states):
        reports.entered(before, state)
        counted.append(reports.skips)
    assert counted == [0, 1, 1, 2, 2, 0, 0, 1]


def test_proposer_waits_for_a_reduce_in_progress() -> None:
    assert wish(REDUCING, []) == Wish(None, "an exchange is in progress", (A, B, C))


def made(*names: PeerId, update: str = "u") -> list[AnyReport]:
    return [ReduceDone(name, 0, 0, digest(update)) for name in names]


IS_DONE = Wish(Commit(0, 0, digest("u")), "the exchange of outer step 0 is done")


def test_result_of_most_participants_is_committed_despite_failures() -> None:
    assert wish(REDUCING, made(B, C)) == IS_DONE
    assert wish(REDUCING, [*failed(A), *made(B, C)], failed_since=0.0) == IS_DONE


def test_result_that_one_other_peer_reports_is_not_committed() -> None:
    assert wish(REDUCING, made(B)) == Wish(None, "an exchange is in progress", (A, B, C))


def test_own_result_is_committed_while_most_participants_may_have_it() -> None:
    assert wish(REDUCING, made(A)) == IS_DONE
    assert wish(REDUCING, [*made(A), *failed(B)], failed_since=0.0) == IS_DONE
    gone = wish(REDUCING, [*made(A), *failed(B, C)], failed_since=0.0, now=1.0)
    assert gone.value == Roster(0, 1, (A, B, C), (), EVERYBODY)
    differ = wish(REDUCING, [*made(A), *made(B, update="x"), *failed(C)], failed_since=0.0, now=1.0)
    assert isinstance(differ.value, Roster)


def test_most_reported_of_different_results_is_committed() -> None:
    assert wish(REDUCING, [*made(A, update="x"), *made(B, C)]) == IS_DONE


def test_result_that_only_dead_peers_have_is_not_committed() -> None:
    events = [*made(B, C), PeerDown(B), PeerDown(C), *failed(A)]
    got = wish(REDUCING, events, failed_since=0.0, now=1.0)
    assert got == Wish(None, "too few are left to try again", look_again_at=10.0)
    assert wish(REDUCING, [*events, UpdateHeld(digest("u"))]) == IS_DONE


def test_result_that_cannot_be_fetched_is_abandoned_after_grace_s() -> None:
    reports = Reports(A, done_since=1.0)
    for event in (*made(B, C), *ready(A, B, C)):
        reports.note(event)
    hopes = what_to_propose(RULES, REDUCING, reports, 10.9)
    assert (hopes.value, hopes.look_again_at) == (Commit(0, 0, digest("u")), 11.0)
    gives_up = what_to_propose(RULES, REDUCING, reports, 11.0)
    assert gives_up.value == Roster(0, 1, (A, B, C), (), EVERYBODY)
    assert gives_up.reason == "attempt 0: no peer can provide its result"
    reports.note(UpdateHeld(digest("u")))
    assert what_to_propose(RULES, REDUCING, reports, 99.0).value == Commit(0, 0, digest("u"))


def taken(text: str, *names: PeerId, step: int = 0) -> list[AnyReport]:
    return [SnapshotTaken(name, step, digest(text)) for name in names]


def snapshot_named(
    state: LedgerState, *events: list[AnyReport], rules: Rules = RULES
) -> SnapshotRef | None:
    """Return the snapshot in the commit that a wants to propose after these events."""
    reports = Reports(A)
    for event in [ReduceDone(A, state.step, 0, digest("u")), *chain.from_iterable(events)]:
        reports.note(event)
    got = what_to_propose(rules, state, reports, 0.0).value
    assert isinstance(got, Commit)
    assert (got.state == state.digest) is (got.snapshot is not None)
    return got.snapshot


FIRST, SECOND = SnapshotRef(0, digest("s0")), SnapshotRef(1, digest("s1"))


def test_commit_names_the_newest_snapshot_that_a_quorum_wrote() -> None:
    values: list[Value] = [Roster(0, 0, (A, B, C), (), EVERYBODY), Commit(0, 0, digest("u"))]
    state = chain_of(RULES, [*values, Roster(1, 0, (A, B, C), (), EVERYBODY)])[1]
    early = taken("s7", A, B, C, step=7)
    assert snapshot_named(state, taken("s0", A, B), early) == FIRST
    both = (taken("s0", A, B), taken("s1", B, C, step=1))
    assert snapshot_named(state, *both, early) == SECOND


def test_certified_snapshot_is_not_named_again() -> None:
    commit = Commit(0, 0, digest("u"), FIRST, digest("any"))
    values: list[Value] = [Roster(0, 0, (A, B, C), (), EVERYBODY), commit]
    state = chain_of(RULES, [*values, Roster(1, 0, (A, B, C), (), EVERYBODY)])[1]
    assert snapshot_named(state, taken("s0", A, B, C)) is None


@pytest.mark.parametrize(
    "events",
    [
        taken("s0", A),
        [*taken("s0", A), *taken("s0", D, E)],
        [*taken("s0", A, B), PeerDown(B)],
        [*taken("s0", A), *taken("other", B), *taken("s0", C, step=1)],
        [*taken("other", A), *taken("s0", B, C)],
    ],
    ids=["one report", "reports of others", "no quorum up", "all differ", "own differs"],
)
def test_commit_does_not_wait_for_a_quorum_of_snapshot_reports(events: list[AnyReport]) -> None:
    assert snapshot_named(REDUCING, events) is None


def test_half_of_the_voters_with_the_first_can_confirm_a_snapshot() -> None:
    four = small_rules("a b c d")
    state = chain_of(four, [Roster(0, 0, (A, B, C, D), (), EVERYBODY)])[1]
    assert snapshot_named(state, taken("s0", A, D), rules=four) == FIRST
    assert snapshot_named(state, taken("s0", B, D), rules=four) is None


def test_two_thirds_quorum_needs_more_reports_for_a_snapshot() -> None:
    strict = small_rules("a b c d", quorum="two-thirds")
    state = chain_of(strict, [Roster(0, 0, (A, B, C, D), (), EVERYBODY)])[1]
    assert snapshot_named(state, taken("s0", A, B), rules=strict) is None
    assert snapshot_named(state, taken("s0", A, B, C), rules=strict) == FIRST


def test_proposer_waits_briefly_for_other_reports_after_a_failure() -> None:
    got = wish(REDUCING, failed(A), now=1.2, failed_since=1.0)
    assert got == Wish(
        None, "an exchange failed; waiting for the other participants' reports", (B, C), 1.5
    )


def test_retry_starts_at_once_when_all_live_participants_failed() -> None:
    got = wish(REDUCING, [PeerDown(C), *failed(A, B, suspects=(C,))], now=1.0, failed_since=1.0)
    again = Roster(0, 1, (A, B), (), EVERYBODY[:2])
    assert got == Wish(again, "attempt 0: it failed")


def test_peer_that_all_accuse_sits_out_but_stays_a_member() -> None:
    got = wish(REDUCING, failed(A, B, C, suspects=(C,)), now=1.0, failed_since=1.0)
    assert got.value == Roster(0, 1, (A, B, C), (), EVERYBODY[:2])


def test_neighbours_that_accuse_each_other_take_part_in_the_retry() -> None:
    events: list[AnyReport] = [
        PeerDown(C),
        ReduceFailed(A, 0, 0, (B,)),
        ReduceFailed(B, 0, 0, (A,)),
    ]
    got = wish(REDUCING, events, now=1.0, failed_since=1.0)
    assert got.value == Roster(0, 1, (A, B), (), EVERYBODY[:2])


def test_failures_of_other_attempts_are_ignored() -> None:
    assert wish(REDUCING, failed(A, B, C, attempt=1)).value is None


def test_step_is_skipped_when_attempts_are_used_up() -> None:
    got = wish(LAST_ATTEMPT, failed(A, B, C, attempt=2), now=1.0, failed_since=1.0)
    assert got == Wish(Skip(0), "all 3 attempts failed")


def test_too_few_participants_wait_and_then_skip() -> None:
    events: list[AnyReport] = [*failed(A), PeerDown(B), PeerDown(C)]
    waits = wish(REDUCING, events, now=1.0, failed_since=1.0)
    assert waits == Wish(None, "too few are left to try again", (), 11.0)
    gives_up = wish(REDUCING, events, now=11.0, failed_since=1.0)
    assert gives_up.value == Skip(0)


def test_peer_that_lost_its_work_is_left_out_even_if_few_remain() -> None:
    events = [
        *ready(A, B, C),
        ReduceFailed(A, 0, 0, (A, C)),
        ReduceFailed(B, 0, 0, (B,)),
        ReduceFailed(C, 0, 0, ()),
    ]
    reports = Reports(A)
    for event in events:
        reports.note(event)
    assert confessed(REDUCING, reports) == (A, B)
    got = wish(REDUCING, events, failed_since=0.0)
    assert got == Wish(None, "too few are left to try again", look_again_at=RULES.grace_s)
    again = wish(REDUCING, [*events, *ready(B)], failed_since=0.0).value
    assert isinstance(again, Roster)
    assert set(again.peers) == {B, C}
