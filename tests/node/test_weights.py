"""The weight of a participant in an average: the tokens on which its fragment was trained.

With several fragments, a fragment contains the work of several outer steps.
"""

from __future__ import annotations

import pytest

from p2ptrain.archive.contribution_weights import eagerness, weights
from p2ptrain.archive.step_index import StepIndex
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Skip, SnapshotRef
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.ledgers import small_rules
from p2ptrain.testing.published import manifest_of
from tests.node.rig import ANN, Growing

RULES = small_rules("a b", outer_steps=20)
A, B = RULES.founders
NEW = PeerId("new")
UPDATE = Digest("d" * 64)


class Run(Growing):
    """The ledger of a run. Each outer step gets participants (a, b, new) with their tokens."""

    def __init__(self) -> None:
        super().__init__(RULES)

    def open(self, **tokens: int) -> Roster:
        """Append a roster with these participants. If `new` is not a member, first admit it."""
        names = {"a": A, "b": B, "new": NEW}
        learners = [*self.state.learners]
        if "new" in tokens and NEW not in learners:
            learners.append(NEW)
        if tuple(learners) != self.state.learners:
            self.grow(self.opening(learners=learners))
        took_part = [Participant(names[each], count, 1) for each, count in tokens.items()]
        roster = self.opening(*took_part, learners=learners)
        self.grow(roster)
        return roster

    def commit(self, *, certifies: int | None = None, **tokens: int) -> None:
        """Append a roster with these participants and its Commit, which may certify the snapshot
        of outer step `certifies`."""
        attempt = self.open(**tokens).attempt
        named = () if certifies is None else (SnapshotRef(certifies, UPDATE), UPDATE)
        self.grow(Commit(self.state.step, attempt, UPDATE, *named))

    def weights(self, fragments: int, **tokens: int) -> dict[str, int]:
        """Append a roster with these participants, and return their weights."""
        roster = self.open(**tokens)
        found = weights(self.history, self.state.since, roster, fragments)
        return dict(zip(tokens, found, strict=True))


@pytest.fixture
def run() -> Run:
    return Run()


def test_weight_with_one_fragment_is_the_work_of_this_outer_step(run: Run) -> None:
    run.commit(a=10, b=20)
    run.commit(b=20)
    assert run.weights(1, a=10, b=7) == {"a": 10, "b": 7}


def test_weight_with_three_fragments_is_the_work_of_three_outer_steps(run: Run) -> None:
    for tokens in (1, 2, 4, 8):
        run.commit(a=tokens, b=10)
    assert run.weights(3, a=16, b=10) == {"a": 4 + 8 + 16, "b": 30}


def test_weight_of_a_new_member_counts_only_the_steps_since_it_joined(run: Run) -> None:
    for _ in range(4):
        run.commit(a=10, b=10)
    run.commit(a=10, b=10, new=10)
    assert run.weights(3, a=10, b=10, new=10) == {"a": 30, "b": 30, "new": 20}


def test_weight_counts_work_that_the_last_average_of_the_fragment_missed(run: Run) -> None:
    run.commit(a=10, b=10)
    run.commit(a=10, b=10)
    run.commit(b=10)  # This average of the first fragment is made without `a`.
    run.commit(a=20, b=10)  # With the second fragment, `a` commits its work of both steps.
    # In the first fragment, `a` still has its work since outer step 0.
    assert run.weights(2, a=10, b=10) == {"a": 40, "b": 20}


def test_weight_counts_work_on_a_fragment_whose_average_was_skipped(run: Run) -> None:
    run.commit(a=10, b=10)
    run.commit(a=10, b=10)
    run.open(a=10, b=10)
    run.grow(Skip(2))
    run.commit(a=20, b=10)
    assert run.weights(2, a=10, b=10) == {"a": 40, "b": 30}


def test_weight_of_a_readmitted_member_counts_only_the_steps_since_then(run: Run) -> None:
    run.commit(a=10, b=10, new=10)
    run.commit(a=10, b=10, new=10)
    run.grow(run.opening())  # This roster drops the new member.
    assert not run.state.is_member(NEW)
    assert run.weights(3, a=10, b=10, new=10) == {"a": 30, "b": 30, "new": 10}


def test_work_before_the_newest_certified_snapshot_does_not_count(run: Run) -> None:
    for _ in range(4):
        run.commit(a=10, b=10)
    run.commit(certifies=3, a=10, b=10)
    run.commit(a=10, b=10)
    assert run.weights(8, a=10, b=10) == {"a": 30, "b": 30}


@pytest.mark.parametrize("fragments", [1, 2, 3, 8])
def test_node_with_a_pruned_ledger_computes_the_same_weights(run: Run, fragments: int) -> None:
    """A pruned ledger begins at a base: the state after the entries that were deleted."""
    for certifies in (None, 1, None, 2, None):
        run.commit(certifies=certifies, a=10, b=20)
    run.commit(a=10, new=3)
    roster = run.open(a=10, b=40, new=3)
    whole = weights(run.history, run.state.since, roster, fragments)
    bases = [
        base
        for height in range(1, run.state.height)
        if (base := base_at(RULES, run.kept, height)) is not None
    ]
    assert len(bases) == 2
    for base in bases:
        run.kept.prune(base)
        for history in (run.history, StepIndex(run.kept)):
            assert weights(history, run.state.since, roster, fragments) == whole


LAST = (Participant(A, 30, 3), Participant(B, 10, 1))


@pytest.mark.parametrize(
    ("last", "me", "share"),
    [(LAST, A, 0.75), (LAST, B, 0.25), (LAST, NEW, 1 / 3), ((), A, 0.0)],
    ids=["most tokens", "few tokens", "not in the last average", "no average yet"],
)
def test_eager_trainer_estimates_its_share_from_the_last_average(
    last: tuple[Participant, ...], me: PeerId, share: float
) -> None:
    """In an eager run, a peer applies its own newest work before the mean arrives, multiplied by
    its expected share of the mean."""
    eager = manifest_of(ANN.peer, sync=SyncSpec(overlap_steps=2, eager=True))
    assert eagerness(eager, last, me) == (share, eager.outer.lr, eager.outer.momentum)
    assert eagerness(manifest_of(ANN.peer), last, me) == (0.0, 0.0, 0.0)


def test_eager_setting_requires_averages_that_are_applied_a_whole_step_late() -> None:
    with pytest.raises(ValueError, match=r"sync\.eager"):
        manifest_of(ANN.peer, inner_steps=4, sync=SyncSpec(overlap_steps=2, eager=True))
