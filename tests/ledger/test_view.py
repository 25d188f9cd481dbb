"""Reports may be repeated, late, outdated or excessively many."""

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
from p2ptrain.ledger.policy.reports import HELD_MAX, SNAPSHOTS_MAX, View
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
def test_report_is_news_only_once(report: AnyReport) -> None:
    view = View(A)
    assert view.note(report)
    assert not view.note(report)


def test_an_older_report_never_replaces_a_newer_one() -> None:
    view = View(A)
    view.note(Ready(B, 3, 1, 1))
    assert not view.note(Ready(B, 2, 9, 9))
    view.note(ReduceFailed(B, 3, 2))
    assert not view.note(ReduceFailed(B, 3, 1))
    assert view.note(ReduceFailed(B, 4, 0))
    assert (view.ready[B].step, view.failed[B].step) == (3, 4)


def test_peer_that_lists_itself_withdraws_its_ready() -> None:
    view = View(A)
    view.note(Ready(B, 0, 1, 1))
    view.note(ReduceFailed(B, 0, 0, (C,)))
    assert set(view.ready) == {B}
    assert view.note(ReduceFailed(B, 0, 1, (C, B)))
    assert view.ready == {}
    assert view.note(Ready(B, 0, 1, 1))
    assert not view.note(ReduceFailed(B, 0, 1, (C, B)))
    assert set(view.ready) == {B}


def test_a_corrected_report_replaces_the_first() -> None:
    view = View(A)
    view.note(Ready(B, 3, 1, 1))
    assert view.note(Ready(B, 3, 2, 2))
    assert view.ready[B].tokens == 2


def test_peers_cannot_declare_this_node_down() -> None:
    view = View(A)
    assert not view.note(PeerDown(A))
    assert view.down == set()


def test_peer_that_was_never_down_does_not_come_up() -> None:
    assert not View(A).note(PeerUp(B))


def test_goodbye_and_wish_to_join_cancel_each_other() -> None:
    view = View(A)
    view.note(Joining(D))
    view.note(Leaving(D))
    assert (list(view.joining), view.leaving) == ([], {D})
    view.note(Joining(D))
    assert (list(view.joining), view.leaving) == ([D], set())


def test_memory_is_bounded_whatever_is_gossiped() -> None:
    view = View(A)
    for n in range(3 * PEERS_MAX):
        peer = PeerId(f"p{n}")
        for report in (Ready(peer, 0, 1, 1), Joining(peer), ReduceFailed(peer, 0, 0)):
            view.note(report)
        view.note(SnapshotTaken(peer, 0, digest("s")))
        view.note(SnapshotTaken(B, n, digest("s")))
        view.note(UpdateHeld(digest(str(n))))
    assert len(view.ready) == len(view.joining) == len(view.failed) == PEERS_MAX
    assert len(view.snapshots) == PEERS_MAX
    assert len(view.snapshots[B]) == SNAPSHOTS_MAX
    assert view.note(SnapshotTaken(A, 0, digest("s")))
    assert view.own_snapshots == {0: digest("s")}
    assert len(view.held) == HELD_MAX
    assert digest(str(3 * PEERS_MAX - 1)) in view.held


def test_strangers_cannot_crowd_out_members_or_newcomers() -> None:
    view = View(A, members=frozenset({A, B}))
    strangers = [PeerId(f"p{n}") for n in range(PEERS_MAX)]
    for each in strangers:
        view.note(Ready(each, 10**9, 1, 1))
        view.note(ReduceDone(each, 10**9, 0, digest("u")))
        view.note(ReduceFailed(each, 10**9, 0))
        view.note(SnapshotTaken(each, 0, digest("s")))
        view.note(Joining(each))
    assert view.note(Joining(C))
    assert C in view.joining
    for each in strangers:
        view.note(Leaving(each))
    of_members: list[AnyReport] = [
        Ready(B, 0, 1, 1),
        ReduceDone(B, 0, 0, digest("u")),
        ReduceFailed(B, 0, 0),
        SnapshotTaken(B, 0, digest("s")),
        Leaving(B),
    ]
    assert all(view.note(report) for report in of_members)
    assert not view.note(Ready(D, 0, 1, 1)), "a further peer that is not a member finds no room"
    tables = (view.ready, view.done, view.failed, view.snapshots)
    assert all(B in table and len(table) == PEERS_MAX for table in tables)
    assert view.leaving == {B}


def test_a_new_step_forgets_the_last_ones_reports() -> None:
    rules = small_rules("a b")
    values: list[Value] = [
        Roster(0, 0, (A, B), (D,), (Participant(A, 1, 1),)),
        Commit(0, 0, digest("u")),
    ]
    before, after = chain_of(rules, values[:1])[1], chain_of(rules, values)[1]
    view = View(A, enough_since=1.0, failed_since=2.0, done_since=2.5)
    reports: list[AnyReport] = [
        Ready(A, 0, 1, 1),
        Ready(B, 1, 1, 1),
        ReduceDone(A, 0, 0, digest("u")),
        ReduceFailed(B, 0, 0),
        Joining(D),
        Leaving(B),
        Leaving(C),
    ]
    for report in reports:
        view.note(report)
    view.entered(before, after)
    assert view == View(A, (1, 0), ready={B: Ready(B, 1, 1, 1)}, leaving={B})
    assert not any(view.note(report) for report in reports[:4])


def test_membership_roster_does_not_stop_the_grace_time() -> None:
    rules = small_rules("a b")
    before, after = chain_of(rules, [])[1], chain_of(rules, [Roster(0, 0, (A, B), (D,))])[1]
    view = View(A, enough_since=1.0)
    view.entered(before, after)
    assert view.enough_since == 1.0


def test_repeated_report_of_a_past_step_is_not_a_lag() -> None:
    rules = small_rules("a b")
    values: list[Value] = [
        Roster(0, 0, (A, B), (), (Participant(A, 1, 1),)),
        Commit(0, 0, digest("u")),
    ]
    before, after = chain_of(rules, values[:1])[1], chain_of(rules, values)[1]
    view = View(A, quorum_at=(0, 5.0))
    late = Ready(B, 0, 1, 1)
    view.note_lag(late, 7.0)
    assert list(view.lags) == [2.0]
    view.note(late)
    view.entered(before, after)
    view.note_lag(late, 20.0)
    assert list(view.lags) == [2.0]


def test_held_update_counts_only_for_the_reduce_it_was_checked_for() -> None:
    """Another attempt has other participants and so another bound."""
    view, update = View(A, position=(2, 1)), digest("u")
    for old in ((2, 0), (1, 3)):
        assert not view.note(UpdateHeld(update, old))
    assert view.held == {}
    assert view.note(UpdateHeld(update, (2, 1)))
    assert list(view.held) == [update]
