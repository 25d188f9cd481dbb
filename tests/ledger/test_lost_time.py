"""How many outer steps a failed attempt costs, and how long it is therefore remembered."""

from __future__ import annotations

from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.policy.blame import HALF_LIFE, HALF_LIFE_MAX, LOST_SHARE, half_life_after
from p2ptrain.ledger.policy.lost_time import STEPS_KEPT, LostTime
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.testing.ledgers import peers


def watched_steps(clock: LostTime, *took_s: float) -> float:
    """Let outer steps of these durations pass. Return the time at their end."""
    now = 100.0
    clock.stepped(now)
    for step_s in took_s:
        clock.opened(now + step_s / 2)
        now += step_s
        clock.watched = True
        clock.stepped(now)
    return now


def test_cost_of_a_failure_is_its_duration_in_outer_steps() -> None:
    clock = LostTime()
    now = watched_steps(clock, 2.0, 0.1, 2.0, 60.0)
    clock.opened(now + 1.0)
    assert clock.failed(now + 9.0) == 8.0 / 2.0, "one short and one long step change nothing"


def test_failures_do_not_lengthen_the_usual_duration() -> None:
    clock = LostTime()
    now = watched_steps(clock, 2.0)
    for _ in range(STEPS_KEPT):
        clock.opened(now + 1.0)
        assert clock.failed(now + 9.0) == 8.0 / 2.0
        clock.opened(now + 9.0)
        now += 10.0
        clock.watched = True
        clock.stepped(now)
    assert list(clock.took_s) == [2.0] * STEPS_KEPT


def test_steps_that_were_only_replayed_do_not_count() -> None:
    clock = LostTime()
    for _ in range(100):
        clock.stepped(50.0)
    clock.opened(51.0)
    assert clock.failed(60.0) == 0.0, "the usual duration of a step is not known yet"


def test_attempt_that_this_node_did_not_see_begin_costs_nothing() -> None:
    clock = LostTime()
    now = watched_steps(clock, 2.0)
    assert clock.failed(now + 9.0) == 0.0


def test_memory_of_a_failure_is_proportional_to_its_cost() -> None:
    assert half_life_after(0.1) == HALF_LIFE, "cheap failures have the shortest half-life"
    assert half_life_after(3.0) * LOST_SHARE == 3.0
    assert half_life_after(1e9) == HALF_LIFE_MAX


def test_node_watches_a_step_only_if_it_hears_a_ready_report_during_that_step() -> None:
    """A newcomer hears that members are ready for step 4 while it still catches up. It applies the
    entries of step 4 a moment later, which says nothing about the duration of an outer step.
    """
    (a,) = peers("a")
    reports = Reports(a, position=(3, 0), members=frozenset((a,)))
    reports.note_time(Ready(a, 4, 200, 2), 1.0)
    assert not reports.lost_time.watched
    reports.note_time(Ready(a, 3, 200, 2), 1.0)
    assert reports.lost_time.watched
    reports.lost_time.stepped(2.0)
    assert not reports.lost_time.watched
