"""The grace period (how long a ready quorum waits for the others) follows from their past lags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceDone, ReduceFailed
from p2ptrain.ledger.policy.grace import CREDIT_SHARE, FLOOR, LAGS_KEPT, LAGS_MIN, grace_after
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.testing.ledgers import LedgerGroup, digest, peers, small_rules

A, B, C, D = peers("a b c d")


def test_agreed_grace_period_is_used_until_there_are_enough_lags() -> None:
    assert grace_after([], 30.0) == grace_after([1.0] * (LAGS_MIN - 1), 30.0) == 30.0


@pytest.mark.parametrize(
    ("lags", "grace_s"),
    [
        ([14.0] * 8, 14.0),
        ([14.0, 15.0, 16.0] * 4, 15.0 + 6 * 1.0),
        ([14.0] * 7 + [500.0], 14.0),
        ([0.1] * 8, 10.0),
        ([29.0, 1.0] * 8, 30.0),
    ],
)
def test_grace_is_the_median_plus_deviations_within_bounds(
    lags: list[float], grace_s: float
) -> None:
    assert grace_after(lags, 30.0) == grace_s


@given(st.lists(st.floats(0, 1e6), max_size=LAGS_KEPT), st.floats(0, 1e4))
def test_grace_stays_within_its_bounds(lags: list[float], upper_s: float) -> None:
    assert FLOOR * upper_s <= grace_after(lags, upper_s) <= upper_s


def test_only_a_members_first_report_after_the_quorum_counts_as_a_lag() -> None:
    reports = Reports(A, quorum_at=(3, 100.0))
    arrivals = [Ready(B, 2, 1, 1), Ready(C, 3, 1, 1), Ready(C, 3, 2, 2), Ready(D, 4, 1, 1)]
    for seconds, report in enumerate(arrivals):
        reports.note_lag(report, 100.0 + seconds)
        reports.note(report)
    assert list(reports.lags) == [1.0]


def test_others_wait_no_longer_than_the_usual_lag() -> None:
    """`c` is ready about 5 s after `a` and `b` in every step except the last. In the last step it
    is not ready, and the others do not wait the full 10 s for it.
    """
    some = LedgerGroup(small_rules(outer_steps=20))
    for step in range(10):
        some.ready("a b")
        some.wait(4.8 if step % 2 else 5.2)
        some.ready("c")
        some.deliver()
        update = digest(f"u{step}")
        some.hold_update(update, "a b c")
        some.send_events("b", *(done(some, peer, update) for peer in "ab"))
        some.send_to_all(*(done(some, peer, update) for peer in "ab"))
        some.deliver()
        assert some["a"].state.step == step + 1
    some.ready("a b")
    some.wait(6.1)
    assert some["a"].state.roster is None
    some.wait(0.2)
    opened = some["a"].chain[-1].entry.value
    assert isinstance(opened, Roster)
    assert (opened.peers, opened.members) == ((A, B), (A, B, C))


def done(some: LedgerGroup, peer: str, update: Digest) -> ReduceDone:
    return ReduceDone(peers(peer)[0], some["a"].state.step, 0, update)


def test_nobody_waits_long_for_a_member_that_is_never_ready() -> None:
    """`c` is up but never becomes ready. The others wait the full grace period for it in two steps,
    and afterwards for at most 5 % of their time.
    """
    some, waits = LedgerGroup(small_rules(outer_steps=20)), []
    for step in range(8):
        some.wait(4.0)
        some.ready("a b")
        some.deliver()
        began_s = some.now
        while some["a"].state.roster is None:
            some.wait(0.05)
        waits.append(round(some.now - began_s, 2))
        average_without_c(some, step)
    usual_s = small_rules().grace_s
    expected = [usual_s, usual_s, 0, 0.6, 0, 0, 0.6, 0]
    assert waits == pytest.approx(expected, abs=0.051)


def test_member_that_is_always_late_does_not_lengthen_the_grace_period() -> None:
    """`c` becomes ready only after each reduce has begun. Its lags count only while the others
    still wait for it.
    """
    some = LedgerGroup(small_rules(outer_steps=20))
    for step in range(10):
        some.wait(2.0)
        some.ready("a b")
        some.deliver()
        while some["a"].state.roster is None:
            some.wait(0.05)
        some.ready("c")
        average_without_c(some, step)
    assert len(some["a"].reports.lags) == 1


def test_quorum_that_is_ready_again_does_not_earn_a_second_credit() -> None:
    """The credit limits how long a quorum waits for members that were missing recently. If a
    quorum earned it twice in a step, a voter could lengthen that wait: it would report again and
    again that its work is lost, and then that it is ready.
    """
    some = LedgerGroup(small_rules(outer_steps=20))
    some.ready("a b c")
    some.deliver()
    average_without_c(some, 0)
    reports, began_s = some["a"].reports, some.now
    some.wait(4.0)
    for attempt in range(5):
        some.ready("a b")
        some.send_events("a", ReduceFailed(B, 1, attempt, (B,)))
    some.ready("a b")
    assert reports.enough_since is not None
    assert reports.credit.saved_s == pytest.approx(CREDIT_SHARE * (some.now - began_s), abs=0.01)


def average_without_c(some: LedgerGroup, step: int) -> None:
    update = digest(f"u{step}")
    some.hold_update(update, "a b c")
    some.send_events("b", *(done(some, peer, update) for peer in "ab"))
    some.send_to_all(*(done(some, peer, update) for peer in "ab"))
    some.deliver()
    assert some["a"].state.step == step + 1
