"""The index of the chain by outer step: the entry that ended each step, and the step's
participants."""

from __future__ import annotations

import pytest

from p2ptrain.archive.update_format import ReduceShape
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.values import (
    Branch,
    Commit,
    Heal,
    Participant,
    Skip,
    SnapshotRef,
)
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.testing.ledgers import digest, small_rules
from tests.ledger import audited
from tests.node.rig import Growing

RULES = small_rules("a b c", outer_steps=3, branch_after_s=60.0)
UPDATE = Digest("d" * 64)
A, B = Participant(RULES.founders[0], 100, 1), Participant(RULES.founders[1], 200, 2)


def test_participants_of_a_step_are_those_of_its_last_attempt() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A, B))
    g.grow(g.opening(B))  # This is the second attempt.
    g.grow(Commit(0, 1, UPDATE))
    assert g.history.closing(0).entry.value == Commit(0, 1, UPDATE)
    assert g.history.participants(0) == (B,)
    assert g.history.newest_participants(9) == (B,)
    assert g.history.reduce_of(0) == ReduceShape("ring", 1)


def test_branch_and_heal_entries_do_not_end_an_outer_step() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A))
    g.grow(Commit(0, 0, UPDATE))
    g.grow(g.opening(A, B))
    g.grow(Branch(1, RULES.founders[:1]))
    assert g.history.newest_participants(9) == (A,)
    with pytest.raises(KeyError):
        g.history.closing(1)
    g.grow(g.opening(A))
    g.grow(Commit(1, 1, UPDATE), Heal(2, 4, UPDATE))
    assert g.history.closing(1).entry.value == Commit(1, 1, UPDATE)
    assert g.history.participants(1) == (A,)


def test_verdict_does_not_end_an_outer_step() -> None:
    g = Growing(audited.RULES)
    g.grow(audited.opening(genesis(audited.RULES), auditors=audited.ALL))
    g.grow(Commit(0, 0, digest("update 0")))
    g.grow(audited.conviction(audited.AUDITED, audited.B))
    assert g.history.newest_participants(9) == g.history.participants(0)
    with pytest.raises(KeyError):
        g.history.closing(1)


def test_skipped_step_has_no_participants() -> None:
    g = Growing(RULES)
    g.grow(g.opening(A))
    g.grow(Commit(0, 0, UPDATE))
    g.grow(g.opening(A, B))
    g.grow(Skip(1))
    assert g.history.closing(1).entry.value == Skip(1)
    assert g.history.participants(1) == ()
    assert g.history.newest_participants(9) == g.history.newest_participants(1) == (A,)
    assert g.history.newest_participants(0) == ()


def test_index_includes_entries_appended_after_its_first_use() -> None:
    g = Growing(RULES)
    assert g.history.newest_participants(9) == ()
    g.grow(g.opening(A))
    assert g.history.newest_participants(9) == ()  # The outer step is not committed yet.
    g.grow(Commit(0, 0, UPDATE))
    assert g.history.participants(0) == g.history.participants(0) == (A,)
    with pytest.raises(KeyError):
        g.history.closing(1)


@pytest.mark.parametrize("looked_at_before", [True, False])
def test_index_forgets_pruned_steps_and_keeps_later_ones(looked_at_before: bool) -> None:
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
