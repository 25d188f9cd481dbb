"""A chain of entries leads to one state, and invalid entries are refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain.apply import apply, genesis, why_invalid
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import (
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Value,
)
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, D, E = peers("a b c d e")
RULES = small_rules("a b", outer_steps=3)
FULL = (Participant(A, 200, 2), Participant(B, 150, 2))


def state_after(*values: Value) -> LedgerState:
    return chain_of(RULES, values)[1]


def opening(step: int, attempt: int = 0) -> Roster:
    return Roster(step, attempt, (A, B), (), FULL)


def test_founders_vote_and_hold_leases_at_genesis() -> None:
    assert genesis(RULES) == LedgerState(
        line=RULES.run,
        past=(),
        height=0,
        head=digest("a run"),
        step=0,
        phase=Phase.GATHER,
        attempt=0,
        tried_before=0,
        roster=None,
        voters=(A, B),
        learners=(),
        since={A: 0, B: 0},
        proven=frozenset(),
        lease_book=Leases({A: (0, 1), B: (2, 3)}, (), 4),
        tokens_by_peer={},
        tokens=0,
        snapshot=None,
        terms=(),
    )


def test_roster_with_participants_opens_a_reduce() -> None:
    state = state_after(opening(0))
    assert (state.phase, state.attempt, state.roster) == (Phase.REDUCE, 1, opening(0))


def test_commit_counts_tokens_and_tops_up_leases() -> None:
    snapshot = SnapshotRef(0, digest("s"))
    state = state_after(opening(0), Commit(0, 0, digest("u"), snapshot, digest("any")))
    assert (state.step, state.phase, state.attempt, state.roster) == (1, Phase.GATHER, 0, None)
    assert (state.tokens, state.tokens_by_peer) == (350, {A: 200, B: 150})
    assert state.leases == {A: (4, 5), B: (6, 7)}
    assert state.snapshot == snapshot


def test_member_that_is_left_out_keeps_its_lease() -> None:
    alone = Roster(0, 0, (A, B), (), FULL[:1])
    state = state_after(alone, Commit(0, 0, digest("u")))
    assert state.leases == {A: (4, 5), B: (2, 3)}


def test_failed_attempt_is_followed_by_the_next_with_different_members() -> None:
    state = state_after(opening(0), Roster(0, 1, (A,), (), FULL[:1]))
    assert (state.phase, state.attempt, state.voters) == (Phase.REDUCE, 2, (A,))
    assert state.lease_book == Leases({A: (0, 1)}, (2, 3), 4)


def test_leases_are_kept_and_extended_after_a_skip() -> None:
    state = state_after(opening(0), Skip(0))
    assert (state.step, state.tokens, state.phase) == (1, 0, Phase.GATHER)
    assert state.leases == {A: (0, 1, 4, 5), B: (2, 3, 6, 7)}


def test_newcomer_votes_after_its_first_committed_step() -> None:
    admitted = Roster(0, 0, (A, B), (C,))
    together = Roster(0, 0, (A, B), (C,), (*FULL, Participant(C, 200, 2)))
    state = state_after(admitted, together, Commit(0, 0, digest("u")))
    assert (state.voters, state.learners, state.proven) == ((A, B), (C,), frozenset({C}))
    assert state.since == {A: 0, B: 0, C: 0}
    promoted = apply(RULES, state, Entry(4, state.head, Roster(1, 0, (A, B, C), ())))
    assert (promoted.voters, promoted.learners, promoted.proven) == ((A, B, C), (), frozenset())


def test_blocks_of_a_leaving_member_go_to_the_next_joiner() -> None:
    state = state_after(Roster(0, 0, (A,), (C,)))
    assert state.lease_book == Leases({A: (0, 1), C: (2, 3)}, (), 4)


def test_run_ends_after_its_steps_whether_committed_or_skipped() -> None:
    values: list[Value] = [opening(0), Commit(0, 0, digest("u")), opening(1), Skip(1), opening(2)]
    state = state_after(*values, Commit(2, 0, digest("w")))
    assert (state.step, state.phase) == (3, Phase.ENDED)
    assert why_invalid(RULES, state, opening(3)) == "the run has ended"


def test_leases_continue_with_a_new_pass_through_the_data() -> None:
    rules = small_rules("a", outer_steps=50)
    values: list[Value] = []
    for step in range(10):
        values += [Roster(step, 0, (A,), (), FULL[:1]), Commit(step, 0, digest(str(step)))]
    state = chain_of(rules, values)[1]
    assert state.leases == {A: (20, 21)}
    assert [rules.data_block(block) for block in state.leases[A]] == [4, 5]


GATHER, REDUCE = genesis(RULES), state_after(opening(0))
LEARNING = state_after(Roster(0, 0, (A, B), (C, D)))
SNAPPED = state_after(
    opening(0),
    Commit(0, 0, digest("u")),
    opening(1),
    Commit(1, 0, digest("v"), SnapshotRef(1, digest("s")), digest("any")),
)

INVALID: dict[str, tuple[LedgerState, Value, str]] = {
    "another step": (GATHER, opening(1), "it is for outer step 1, but the current one is 0"),
    "another attempt": (GATHER, opening(0, 1), "it has attempt 1, but attempt 0 comes next"),
    "nothing changed": (GATHER, Roster(0, 0, (A, B), ()), "it changes nothing"),
    "membership in a reduce": (
        REDUCE,
        Roster(0, 1, (A,), ()),
        "membership alone cannot change during an exchange",
    ),
    "ranks changed": (
        GATHER,
        Roster(0, 0, (B, A), (), FULL),
        "the remaining voters must keep their order, and come before the new ones",
    ),
    "no voter stays": (GATHER, Roster(0, 0, (C,), ()), "it keeps none of the voters"),
    "unproven voter": (
        LEARNING,
        Roster(0, 0, (A, B, C), (D,)),
        "c cannot become a voter before it takes part in a committed update",
    ),
    "too many new": (
        replace(LEARNING, voters=(A,), proven=frozenset({C, D})),
        Roster(0, 0, (A, C, D), ()),
        "it has 2 new voters and keeps only 1",
    ),
    "voter demoted": (
        GATHER,
        Roster(0, 0, (A,), (B,)),
        "b is a voter and cannot become a learner",
    ),
    "more blocks than leased": (
        GATHER,
        Roster(0, 0, (A, B), (), (Participant(A, 1, 3),)),
        "a commits 3 blocks, but its lease has 2",
    ),
    "more tokens than trained": (
        GATHER,
        Roster(0, 0, (A, B), (), (Participant(A, 201, 2),)),
        "a claims 201 tokens from 2 blocks",
    ),
    "newcomer takes part at once": (
        GATHER,
        Roster(0, 0, (A, B), (C,), (Participant(C, 1, 1),)),
        "c commits 1 blocks, but its lease has 0",
    ),
    "commit without a reduce": (
        GATHER,
        Commit(0, 0, digest("u")),
        "there is no exchange to commit",
    ),
    "commit of another attempt": (
        REDUCE,
        Commit(0, 1, digest("u")),
        "it commits attempt 1, but attempt 0 is current",
    ),
    "snapshot of the future": (
        REDUCE,
        Commit(0, 0, digest("u"), SnapshotRef(1, digest("s")), REDUCE.digest),
        "its snapshot is of outer step 1, which has not begun",
    ),
    "snapshot not newer": (
        replace(SNAPPED, phase=Phase.REDUCE, roster=opening(2), attempt=1),
        Commit(2, 0, digest("w"), SnapshotRef(1, digest("s")), digest("any")),
        "its snapshot of outer step 1 is not newer than the last one",
    ),
    "another state": (
        REDUCE,
        Commit(0, 0, digest("u"), SnapshotRef(0, digest("s")), GATHER.digest),
        "it names a different state from the one that it applies to",
    ),
    "skip without a reduce": (GATHER, Skip(0), "there is no exchange to skip"),
    "attempts used up": (
        replace(REDUCE, attempt=3),
        opening(0, 3),
        "all 3 attempts are used up",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_entry_that_does_not_fit_is_refused_with_a_reason(name: str) -> None:
    state, value, reason = INVALID[name]
    assert why_invalid(RULES, state, value) == reason
    with pytest.raises(RemoteProtocolError, match="is not valid"):
        apply(RULES, state, Entry(state.height + 1, state.head, value))


def test_roster_with_too_few_participants_is_refused() -> None:
    rules = small_rules("a b", participants_min=2)
    lonely = Roster(0, 0, (A, B), (), FULL[:1])
    assert why_invalid(rules, genesis(rules), lonely) == "it has 1 participants; 2 are needed"


@pytest.mark.parametrize(
    "entry", [Entry(2, GATHER.head, opening(0)), Entry(1, digest("x"), opening(0))]
)
def test_entry_that_does_not_follow_the_head_is_refused(entry: Entry) -> None:
    with pytest.raises(RemoteProtocolError, match="does not follow"):
        apply(RULES, GATHER, entry)
