"""The chain by outer steps, and whose turn it is to measure the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.ids import Digest
from p2ptrain.ledger.pruning import base_at
from p2ptrain.ledger.state import Phase
from p2ptrain.ledger.values import (
    Branch,
    Commit,
    Heal,
    Participant,
    Skip,
    SnapshotRef,
)
from p2ptrain.node.turns import evaluates
from p2ptrain.testing.ledgers import small_rules
from tests.node.rig import Growing

RULES = small_rules("a b c", outer_steps=3, branch_after_s=60.0)
UPDATE = Digest("d" * 64)
A, B = Participant(RULES.founders[0], 100, 1), Participant(RULES.founders[1], 200, 2)


def test_a_step_is_closed_by_its_commit_and_owed_to_the_last_roster_before_it() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A, B))
    g.grow(g.opening(B))  # the second attempt
    g.grow(Commit(0, 1, UPDATE))
    assert g.history.closing(0).entry.value == Commit(0, 1, UPDATE)
    assert g.history.participants(0) == (B,)
    assert g.history.last_participants() == (B,)


def test_a_branch_ends_a_reduce_but_no_step_and_a_heal_ends_none() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A))
    g.grow(Commit(0, 0, UPDATE))
    g.grow(g.opening(A, B))
    g.grow(Branch(1, RULES.founders[:1]))
    assert g.history.last_participants() == (A,)
    with pytest.raises(KeyError):
        g.history.closing(1)
    g.grow(g.opening(A))
    g.grow(Commit(1, 1, UPDATE), Heal(2, 4, UPDATE))
    assert g.history.closing(1).entry.value == Commit(1, 1, UPDATE)
    assert g.history.participants(1) == (A,)


def test_a_skipped_step_is_owed_to_nobody() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A))
    g.grow(Commit(0, 0, UPDATE))
    g.grow(g.opening(A, B))
    g.grow(Skip(1))
    assert g.history.closing(1).entry.value == Skip(1)
    assert g.history.participants(1) == ()
    assert g.history.last_participants() == (A,)


def test_the_index_follows_the_chain_however_often_it_is_asked() -> None:
    g = Growing(RULES)
    assert g.history.last_participants() == ()
    g.grow(g.opening(A))
    assert g.history.last_participants() == ()  # open, not committed
    g.grow(Commit(0, 0, UPDATE))
    assert g.history.participants(0) == g.history.participants(0) == (A,)
    with pytest.raises(KeyError):
        g.history.closing(1)


@pytest.mark.parametrize("looked_at_before", [True, False])
def test_what_is_pruned_is_forgotten_and_the_rest_stays(looked_at_before: bool) -> None:
    g = Growing(RULES)
    for step in range(3):
        named = (SnapshotRef(step, UPDATE), UPDATE) if step == 1 else ()
        g.grow(g.opening(A), Commit(step, 0, UPDATE, *named))
        if looked_at_before:
            assert g.history.participants(step) == (A,)
    base = base_at(RULES, g.kept, 4)
    assert base is not None
    g.kept.prune(base)
    assert g.history.participants(1) == g.history.participants(2) == (A,)
    assert g.history.closing(1) == base.commit
    with pytest.raises(KeyError):
        g.history.closing(0)


def test_one_of_those_who_took_part_measures_each_step() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A, B))
    g.grow(Commit(0, 0, UPDATE))
    turns = []
    for step in range(6):
        state = replace(g.state, step=step)
        turns.append([p for p in RULES.founders if evaluates(g.history, state, p, every=1)])
    assert all(len(turn) == 1 for turn in turns)
    assert {turn[0] for turn in turns} == {A.peer, B.peer}


def test_before_the_first_commit_some_member_measures() -> None:
    g = Growing(RULES)
    assert sum(evaluates(g.history, g.state, p, every=1) for p in RULES.founders) == 1


def test_between_the_steps_that_are_measured_nobody_measures() -> None:
    g = Growing(RULES)
    state = replace(g.state, step=3)
    assert not any(evaluates(g.history, state, p, every=2) for p in RULES.founders)


def test_at_the_end_everybody_measures() -> None:
    g = Growing(RULES)
    state = replace(g.state, step=3, phase=Phase.ENDED)
    assert all(evaluates(g.history, state, p, every=2) for p in RULES.founders)
