"""Tallies recognise reports that change nothing, which saves time. The decisions are the same as if
each were computed from all reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Participant, Roster
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.effects import Effect
from p2ptrain.ledger.messages.events import Event, Tick
from p2ptrain.ledger.messages.peer_reports import (
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    UpdateHeld,
)
from p2ptrain.ledger.policy import policy
from p2ptrain.ledger.policy.incremental import CommitTally
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

NAMES = peers("a b c d e")
MEMBERS = (*NAMES, *peers("f g"))
RULES = small_rules("a b c d e", participants_min=2)
U, V = digest("u"), digest("v")
JOINED = Roster(0, 0, NAMES, MEMBERS[5:])
OPEN = Roster(0, 0, NAMES, MEMBERS[5:], tuple(Participant(peer, 200, 2) for peer in MEMBERS))

OPEN_TO_SOME = Roster(0, 0, NAMES, MEMBERS[5:], OPEN.participants[:4])
LAST = tuple(Roster(0, attempt, NAMES, MEMBERS[5:], OPEN.participants) for attempt in range(3))

PEERS = st.sampled_from(MEMBERS)
FAILURES = st.builds(ReduceFailed, PEERS, st.just(0), st.just(0), st.tuples(PEERS) | st.just(()))
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Ready, PEERS, st.integers(0, 1), st.just(200), st.integers(0, 3)),
    st.builds(Ready, PEERS, st.just(0), st.just(200), st.just(2)),
    st.builds(Ready, PEERS, st.just(0), st.just(200), st.just(2)),
    st.builds(ReduceDone, PEERS, st.just(0), st.just(0), st.sampled_from([U, U, V])),
    FAILURES,
    FAILURES,
    st.builds(ReduceFailed, PEERS, st.just(0), st.integers(0, 2)),
    st.builds(SnapshotTaken, PEERS, st.just(0), st.sampled_from([U, U, V])),
    st.builds(UpdateHeld, st.sampled_from([U, V])),
    st.builds(PeerDown, PEERS),
    st.builds(PeerUp, PEERS),
    st.builds(Joining, st.sampled_from(peers("x f"))),
    st.builds(Leaving, PEERS),
    st.just(Tick()),
)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from("abf"),
    st.sampled_from([(JOINED,), (JOINED, OPEN), (JOINED, OPEN_TO_SOME), (JOINED, *LAST)]),
    st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.3, 4.0])), max_size=40),
)
def test_tallies_do_not_change_any_decision(
    name: str, values: tuple[Roster, ...], story: list[tuple[Event, float]]
) -> None:
    quick = told(name, values, story)
    with mock.patch.object(policy, "reconsider", uncounted):
        assert told(name, values, story) == quick


def uncounted(rules: Rules, state: LedgerState, reports: Reports, now: float) -> tuple[Wish, None]:
    return reconsider(rules, state, reports, now)[0], None


reconsider = policy.reconsider


def told(
    name: str, values: tuple[Roster, ...], story: list[tuple[Event, float]]
) -> list[tuple[list[Effect], float | None]]:
    me, now = peers(name)[0], 0.0
    ledger = Ledger(RULES, me, signer(me), verify, chain_of(RULES, values)[0])
    heard = []
    for event, passed in story:
        now += passed
        heard.append((ledger.handle(event, now), ledger.next_deadline()))
    return heard


def test_tally_absorbs_a_report_that_supports_the_current_commit() -> None:
    tally = CommitTally(Commit(0, 0, U), failing=False, agreed=False)
    assert tally.absorbs(ReduceDone(NAMES[0], 0, 0, U))
    assert not tally.absorbs(ReduceDone(NAMES[0], 0, 0, V))
    assert not tally.absorbs(ReduceDone(NAMES[0], 0, 1, U))
    assert not tally.absorbs(UpdateHeld(U))
    assert tally.absorbs(Ready(NAMES[0], 1, 200, 2))


def test_failure_changes_nothing_once_most_have_the_result() -> None:
    """A failure report matters only while too few participants have reported the result, since a
    participant that gave up will not report it.
    """
    failure = ReduceFailed(NAMES[0], 0, 0)
    assert not CommitTally(Commit(0, 0, U), failing=False, agreed=True).absorbs(failure)
    assert CommitTally(Commit(0, 0, U), failing=True, agreed=True).absorbs(failure)
    assert not CommitTally(Commit(0, 0, U), failing=True, agreed=False).absorbs(failure)


# ── a thousand members ───────────────────────────────────────────────────────────────────────────

MANY = peers(" ".join(f"p{n:03d}" for n in range(1000)))
CROWD = small_rules(" ".join(MANY))
EVERYBODY = Roster(0, 0, MANY, (), tuple(Participant(peer, 200, 2) for peer in MANY))


def considered(
    ledger: Ledger, events: Iterable[Event], between_s: float, *, since: float = 0.0
) -> int:
    """Return how many times the proposal was computed from all reports."""
    now = since
    with mock.patch.object(policy, "reconsider", side_effect=reconsider) as worked_out:
        for event in events:
            ledger.handle(event, now)
            now += between_s
    return worked_out.call_count


def in_the_crowd(*values: Roster) -> Ledger:
    return Ledger(CROWD, MANY[1], signer(MANY[1]), verify, chain_of(CROWD, values)[0])


def test_thousand_ready_reports_need_three_computations() -> None:
    """The proposal is computed once at the start, once when a quorum is ready, and once when the
    last member is ready.
    """
    readies = [Ready(peer, 0, 200, 2) for peer in MANY]
    assert considered(in_the_crowd(), readies, 0.0) == 3


def test_thousand_done_reports_need_two_computations() -> None:
    results = [ReduceDone(peer, 0, 0, U) for peer in MANY]
    assert considered(in_the_crowd(EVERYBODY), [UpdateHeld(U), *results], 0.0) == 2


@pytest.mark.parametrize("between_s", [0.0, 0.001, 0.002], ids=["at once", "1 s", "2 s"])
def test_thousand_failure_reports_need_few_computations(between_s: float) -> None:
    """The proposal is computed once at the start, once at the first failure, and once when the wait
    for further reports ends.
    """
    blamed = (MANY[7],)
    failures = [ReduceFailed(peer, 0, 0, blamed if n < 2 else ()) for n, peer in enumerate(MANY)]
    assert considered(in_the_crowd(EVERYBODY), failures, between_s) <= 4


def test_thousand_snapshot_reports_need_one_computation() -> None:
    written = [SnapshotTaken(peer, 0, U) for peer in MANY]
    failures = [ReduceFailed(peer, 0, 0) for peer in MANY]
    assert considered(in_the_crowd(), written, 0.0) == 1
    assert considered(in_the_crowd(EVERYBODY), written, 0.0) == 1
    trying_again = in_the_crowd(EVERYBODY)
    considered(trying_again, failures, 0.0)
    assert considered(trying_again, written, 0.0) == 0


def test_late_report_counts_if_it_accuses_a_peer() -> None:
    """The third report arrives after the wait of 0.5 s for further reports has ended."""
    late = [ReduceFailed(peer, 0, 0, (MANY[9],)) for peer in MANY[3:5]]
    ledger = in_the_crowd(EVERYBODY)
    assert considered(ledger, [ReduceFailed(peer, 0, 0) for peer in MANY[:3]], 0.3) == 2
    assert ledger.status(0.6).reason == "attempt 0: it failed"
    assert considered(ledger, [ReduceFailed(MANY[7], 0, 0)], 0.0, since=0.6) == 0
    assert considered(ledger, late, 0.0, since=0.6) == 2
