"""The weight of a participant when a fragment contains the work of several outer steps."""

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
    """Outer steps of a run. Each is opened by the named participants with their tokens."""

    def __init__(self) -> None:
        super().__init__(RULES)

    def open(self, **tokens: int) -> Roster:
        """Append the next roster. A participant that is not a member becomes one."""
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
        attempt = self.open(**tokens).attempt
        named = () if certifies is None else (SnapshotRef(certifies, UPDATE), UPDATE)
        self.grow(Commit(self.state.step, attempt, UPDATE, *named))

    def weights(self, fragments: int, **tokens: int) -> dict[str, int]:
        roster = self.open(**tokens)
        found = weights(self.history, self.state.since, roster, fragments)
        return dict(zip(tokens, found, strict=True))


@pytest.fixture
def run() -> Run:
    return Run()


def test_with_one_fragment_a_participants_weight_is_what_it_commits(run: Run) -> None:
    run.commit(a=10, b=20)
    run.commit(b=20)
    assert run.weights(1, a=10, b=7) == {"a": 10, "b": 7}


def test_with_three_fragments_the_weight_is_the_work_of_three_outer_steps(run: Run) -> None:
    for tokens in (1, 2, 4, 8):
        run.commit(a=tokens, b=10)
    assert run.weights(3, a=16, b=10) == {"a": 4 + 8 + 16, "b": 30}


def test_joiners_weight_is_at_most_the_work_it_has_done(run: Run) -> None:
    for _ in range(4):
        run.commit(a=10, b=10)
    run.commit(a=10, b=10, new=10)
    assert run.weights(3, a=10, b=10, new=10) == {"a": 30, "b": 30, "new": 20}


def test_member_left_out_of_its_fragment_is_weighted_by_the_work_it_kept(run: Run) -> None:
    run.commit(a=10, b=10)
    run.commit(a=10, b=10)
    run.commit(b=10)  # a is left out of the first fragment
    run.commit(a=20, b=10)  # a commits all its work with the second
    # a has kept its work on the first fragment.
    assert run.weights(2, a=10, b=10) == {"a": 40, "b": 20}


def test_skipped_work_counts_as_not_averaged(run: Run) -> None:
    run.commit(a=10, b=10)
    run.commit(a=10, b=10)
    run.open(a=10, b=10)
    run.grow(Skip(2))
    run.commit(a=20, b=10)
    assert run.weights(2, a=10, b=10) == {"a": 40, "b": 30}


def test_returning_member_is_weighted_like_a_joiner(run: Run) -> None:
    run.commit(a=10, b=10, new=10)
    run.commit(a=10, b=10, new=10)
    run.grow(run.opening())  # the member is away in this step
    assert not run.state.is_member(NEW)
    assert run.weights(3, a=10, b=10, new=10) == {"a": 30, "b": 30, "new": 10}


def test_work_before_the_newest_certified_snapshot_does_not_count(run: Run) -> None:
    for _ in range(4):
        run.commit(a=10, b=10)
    run.commit(certifies=3, a=10, b=10)
    run.commit(a=10, b=10)
    assert run.weights(8, a=10, b=10) == {"a": 30, "b": 30}


@pytest.mark.parametrize("fragments", [1, 2, 3, 8])
def test_node_that_begins_at_a_base_computes_the_same_weights(run: Run, fragments: int) -> None:
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
    ids=["much", "little", "it joins", "no peer is known"],
)
def test_eager_peer_uses_its_share_of_the_last_average(
    last: tuple[Participant, ...], me: PeerId, share: float
) -> None:
    eager = manifest_of(ANN.peer, sync=SyncSpec(overlap_steps=2, eager=True))
    assert eagerness(eager, last, me) == (share, eager.outer.lr, eager.outer.momentum)
    assert eagerness(manifest_of(ANN.peer), last, me) == (0.0, 0.0, 0.0)


def test_only_a_run_with_averages_a_whole_step_late_can_be_eager() -> None:
    with pytest.raises(ValueError, match=r"sync\.eager"):
        manifest_of(ANN.peer, inner_steps=4, sync=SyncSpec(overlap_steps=2, eager=True))
