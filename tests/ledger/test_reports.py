"""Repeated, late, outdated and excessive reports do no harm."""

from __future__ import annotations

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Terms, Value
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    AnyReport,
    Joining,
    KnownAmendments,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    UpdateHeld,
)
from p2ptrain.ledger.policy.reports import HELD_MAX, SNAPSHOTS_MAX, Reports
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, D = peers("a b c d")

REPORTS: tuple[AnyReport, ...] = (
    Ready(B, 0, 1, 1),
    ReduceDone(B, 0, 0, digest("u")),
    ReduceFailed(B, 0, 0, (C,)),
    UpdateHeld(digest("u")),
    SnapshotTaken(B, 1, digest("s")),
    PeerDown(B),
    Joining(D),
    Leaving(B),
    AllowedPeers(frozenset({A})),
    KnownAmendments(frozenset({Terms(1, 2, digest("amendment"))})),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_repeated_report_changes_nothing(report: AnyReport) -> None:
    reports = Reports(A)
    assert reports.note(report)
    assert not reports.note(report)


def test_older_report_never_replaces_a_newer_one() -> None:
    reports = Reports(A)
    reports.note(Ready(B, 3, 1, 1))
    assert not reports.note(Ready(B, 2, 9, 9))
    reports.note(ReduceFailed(B, 3, 2))
    assert not reports.note(ReduceFailed(B, 3, 1))
    assert reports.note(ReduceFailed(B, 4, 0))
    assert (reports.ready[B].step, reports.failed[B].step) == (3, 4)


def test_peer_that_names_itself_as_a_suspect_is_no_longer_ready() -> None:
    reports = Reports(A)
    reports.note(Ready(B, 0, 1, 1))
    reports.note(ReduceFailed(B, 0, 0, (C,)))
    assert set(reports.ready) == {B}
    assert reports.note(ReduceFailed(B, 0, 1, (C, B)))
    assert reports.ready == {}
    assert reports.note(Ready(B, 0, 1, 1))
    assert not reports.note(ReduceFailed(B, 0, 1, (C, B)))
    assert set(reports.ready) == {B}


def test_corrected_report_replaces_the_first() -> None:
    reports = Reports(A)
    reports.note(Ready(B, 3, 1, 1))
    assert reports.note(Ready(B, 3, 2, 2))
    assert reports.ready[B].tokens == 2


def test_peers_cannot_declare_this_node_down() -> None:
    reports = Reports(A)
    assert not reports.note(PeerDown(A))
    assert reports.down == set()


def test_peer_up_report_of_a_peer_that_is_up_changes_nothing() -> None:
    assert not Reports(A).note(PeerUp(B))


def test_leaving_and_joining_reports_cancel_each_other() -> None:
    reports = Reports(A)
    reports.note(Joining(D))
    reports.note(Leaving(D))
    assert (list(reports.joining), reports.leaving) == ([], {D})
    reports.note(Joining(D))
    assert (list(reports.joining), reports.leaving) == ([D], set())


def test_memory_for_reports_is_bounded() -> None:
    reports = Reports(A)
    for n in range(3 * PEERS_MAX):
        peer = PeerId(f"p{n}")
        for report in (Ready(peer, 0, 1, 1), Joining(peer), ReduceFailed(peer, 0, 0)):
            reports.note(report)
        reports.note(SnapshotTaken(peer, 0, digest("s")))
        reports.note(SnapshotTaken(B, n, digest("s")))
        reports.note(UpdateHeld(digest(str(n))))
    assert len(reports.ready) == len(reports.joining) == len(reports.failed) == PEERS_MAX
    assert len(reports.snapshots) == PEERS_MAX
    assert len(reports.snapshots[B]) == SNAPSHOTS_MAX
    assert reports.note(SnapshotTaken(A, 0, digest("s")))
    assert reports.own_snapshots == {0: digest("s")}
    assert len(reports.held) == HELD_MAX
    assert digest(str(3 * PEERS_MAX - 1)) in reports.held


def test_strangers_cannot_crowd_out_members_or_newcomers() -> None:
    reports = Reports(A, members=frozenset({A, B}))
    strangers = [PeerId(f"p{n}") for n in range(PEERS_MAX)]
    for each in strangers:
        reports.note(Ready(each, 10**9, 1, 1))
        reports.note(ReduceDone(each, 10**9, 0, digest("u")))
        reports.note(ReduceFailed(each, 10**9, 0))
        reports.note(SnapshotTaken(each, 0, digest("s")))
        reports.note(Joining(each))
    assert reports.note(Joining(C))
    assert C in reports.joining
    for each in strangers:
        reports.note(Leaving(each))
    of_members: list[AnyReport] = [
        Ready(B, 0, 1, 1),
        ReduceDone(B, 0, 0, digest("u")),
        ReduceFailed(B, 0, 0),
        SnapshotTaken(B, 0, digest("s")),
        Leaving(B),
    ]
    assert all(reports.note(report) for report in of_members)
    assert not reports.note(Ready(D, 0, 1, 1)), "a further stranger must be ignored"
    tables = (reports.ready, reports.done, reports.failed, reports.snapshots)
    assert all(B in table and len(table) == PEERS_MAX for table in tables)
    assert reports.leaving == {B}


def test_reports_of_the_last_step_are_forgotten_in_a_new_step() -> None:
    rules = small_rules("a b")
    values: list[Value] = [
        Roster(0, 0, (A, B), (D,), (Participant(A, 1, 1),)),
        Commit(0, 0, digest("u")),
    ]
    before, after = chain_of(rules, values[:1])[1], chain_of(rules, values)[1]
    reports = Reports(A, enough_since=1.0, failed_since=2.0, done_since=2.5)
    events: list[AnyReport] = [
        Ready(A, 0, 1, 1),
        Ready(B, 1, 1, 1),
        ReduceDone(A, 0, 0, digest("u")),
        ReduceFailed(B, 0, 0),
        Joining(D),
        Leaving(B),
        Leaving(C),
    ]
    for report in events:
        reports.note(report)
    reports.entered(before, after)
    assert reports == Reports(A, (1, 0), ready={B: Ready(B, 1, 1, 1)}, leaving={B})
    assert not any(reports.note(report) for report in events[:4])


def test_membership_roster_does_not_restart_the_grace_period() -> None:
    rules = small_rules("a b")
    before, after = chain_of(rules, [])[1], chain_of(rules, [Roster(0, 0, (A, B), (D,))])[1]
    reports = Reports(A, enough_since=1.0)
    reports.entered(before, after)
    assert reports.enough_since == 1.0


def test_repeated_report_of_a_past_step_does_not_record_a_lag() -> None:
    rules = small_rules("a b")
    values: list[Value] = [
        Roster(0, 0, (A, B), (), (Participant(A, 1, 1),)),
        Commit(0, 0, digest("u")),
    ]
    before, after = chain_of(rules, values[:1])[1], chain_of(rules, values)[1]
    reports = Reports(A, quorum_at=(0, 5.0))
    late = Ready(B, 0, 1, 1)
    reports.note_lag(late, 7.0)
    assert list(reports.lags) == [2.0]
    reports.note(late)
    reports.entered(before, after)
    reports.note_lag(late, 20.0)
    assert list(reports.lags) == [2.0]


def test_held_update_counts_only_for_the_attempt_it_was_checked_for() -> None:
    """Another attempt has different participants, and therefore a different bound on influence."""
    reports, update = Reports(A, position=(2, 1)), digest("u")
    for old in ((2, 0), (1, 3)):
        assert not reports.note(UpdateHeld(update, old))
    assert reports.held == {}
    assert reports.note(UpdateHeld(update, (2, 1)))
    assert list(reports.held) == [update]
