"""Peers of one process follow the sync modes, and continue from a checkpoint with identical
results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import pytest

from p2ptrain.sync import SyncSpec
from p2ptrain.sync.fragments import Fragment
from p2ptrain.trainer.formats.genesis import genesis
from scripts.research.learning import checkpoint
from scripts.research.learning.averaging import Contribution
from scripts.research.learning.corpus import Corpus, corpus_for
from scripts.research.learning.settings import Churn
from scripts.research.learning.swarm import Swarm
from scripts.research.learning.trial import THETA, Cut, run_trial, tokens_of
from tests.learning.conftest import MODEL, TOY, toy
from tests.rounding import assert_rounded_alike, distance, nudged, of_additions

STREAMING = {"peers": 2, "sync": SyncSpec(2, 1, 0.5), "outer_lr": 0.4}

ARMS = {
    "plain": toy(codec="int8"),
    "alone": toy(peers=1, averages=False),
    "streaming with feedback": toy(**STREAMING, codec="int4", feedback=True),
    "async": toy(sync=SyncSpec(1, 4)),
    "eager": toy(sync=SyncSpec(1, 4, eager=True)),
    "one is slow": toy(slow=1),
    "churn": toy(churn=Churn("donor", warmup_steps=3)),
    "muon": toy(optimizer="muon", precision="bf16"),
}


AnySwarm = TypeVar("AnySwarm", bound=Swarm)


def advanced(swarm: AnySwarm, steps: int) -> AnySwarm:
    for _ in range(steps):
        swarm.advance()
    return swarm


def bits(swarm: Swarm) -> list[bytes]:
    """Return θ, m and the entire state of the peers."""
    owned = [peer.replica.moments() | {"weights": peer.replica.weights} for peer in swarm.peers]
    owned += [{"owes": peer.owes} for peer in swarm.peers if peer.owes is not None]
    return [
        swarm.theta.tobytes(),
        swarm.momentum.tobytes(),
        *(each[name].tobytes() for each in owned for name in sorted(each)),
    ]


@pytest.mark.parametrize("arm", ARMS)
def test_run_continued_from_a_checkpoint_has_the_same_bits(
    corpus: Corpus, tmp_path: Path, arm: str
) -> None:
    settings, path = ARMS[arm], tmp_path / "checkpoint.npz"
    cut = advanced(Swarm.begin(settings, corpus), 10)
    checkpoint.save(cut, {"said": 1}, path)
    loaded = checkpoint.load(settings, corpus, path)
    assert loaded is not None
    resumed, notes = loaded
    assert notes == {"said": 1}
    whole = advanced(Swarm.begin(settings, corpus), 19)
    assert bits(advanced(resumed, 9)) == bits(whole)
    assert (resumed.book, resumed.losses) == (whole.book, whole.losses)


def test_checkpoint_of_different_settings_or_text_is_refused(
    corpus: Corpus, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    assert checkpoint.load(toy(), corpus, path) is None
    checkpoint.save(Swarm.begin(toy(), corpus), {}, path)
    assert checkpoint.load(toy(lr=2e-2), corpus, path) is None
    assert checkpoint.load(toy(), Corpus(corpus.train[1:], corpus.validation), path) is None


def test_single_peer_that_averages_each_step_trains_as_if_alone(
    corpus: Corpus,
) -> None:
    """θ − (θ − local) equals local except for rounding."""
    one = toy(peers=1, inner_steps=1, outer_lr=1.0, momentum=0.0)
    averaged = advanced(Swarm.begin(one, corpus), 8)

    def alone(random: np.random.Generator | None = None) -> np.ndarray:
        swarm = Swarm.begin(toy(peers=1, inner_steps=1, averages=False), corpus)
        for _ in range(8):
            weights = swarm.peers[0].replica.weights
            weights[:] = nudged(weights, random) if random else weights
            swarm.advance()
        return swarm.theta

    rounded = [alone(np.random.default_rng(seed)) for seed in range(3)]
    assert distance(averaged.theta, genesis(MODEL, one.seed)) > 1
    assert_rounded_alike(averaged.theta, alone(), *rounded)


class Watched(Swarm):
    """A swarm that records the inputs of each average."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.read: list[list[Contribution]] = []

    @classmethod
    def begin(cls, *fields: Any) -> Watched:
        return cast(Watched, super().begin(*fields))

    def _averaged(self, read: Sequence[Contribution], fragment: Fragment) -> bytes:
        self.read.append(list(read))
        return super()._averaged(read, fragment)


def test_plain_averaging_makes_theta_the_mean_of_the_peers_weights(corpus: Corpus) -> None:
    swarm = advanced(Watched.begin(toy(peers=4, outer_lr=1.0, momentum=0.0), corpus), 4)
    mean = np.mean([each.local for each in swarm.read[0]], axis=0)
    assert np.allclose(swarm.theta, mean, rtol=0, atol=of_additions(4 + 3, 2.0))
    assert {peer.replica.weights.tobytes() for peer in swarm.peers} == {swarm.theta.tobytes()}


def test_streaming_merges_one_fragment_at_a_time_after_a_delay(
    corpus: Corpus,
) -> None:
    swarm = Swarm.begin(toy(**STREAMING), corpus)
    whole = swarm.theta.size
    moved = []
    for _ in range(8):
        before = swarm.theta.copy()
        swarm.advance()
        changed = np.flatnonzero(swarm.theta != before)
        moved.append(
            [
                number
                for number, each in enumerate(swarm.fragments)
                if any(((changed >= a) & (changed < b)).any() for a, b in each.ranges)
            ]
        )
    assert moved == [[], [], [0], [], [1], [], [0], []]
    assert sum(fragment.numel for fragment in swarm.fragments) == whole


def test_merged_fragment_keeps_its_share_of_local_weights(corpus: Corpus) -> None:
    swarm = advanced(Swarm.begin(toy(**STREAMING), corpus), 3)
    layers, embedding = swarm.fragments
    first, other = (peer.replica.weights for peer in swarm.peers)
    (start, stop), *_ = layers.ranges
    assert np.abs(first[start:stop] - swarm.theta[start:stop]).max() > 0
    apart = np.abs(first - other)
    assert apart[start:stop].max() < apart[embedding.ranges[0][0] : embedding.ranges[0][1]].max()


def test_theta_does_not_change_for_two_steps_with_a_delay_of_one(corpus: Corpus) -> None:
    swarm = advanced(Watched.begin(toy(sync=SyncSpec(1, 4)), corpus), 7)
    assert np.array_equal(swarm.theta, genesis(MODEL, 1))
    assert len(swarm.pending) == 1
    advanced(swarm, 1)
    assert not np.array_equal(swarm.theta, genesis(MODEL, 1))
    assert [[each.anchor.tobytes() for each in read] for read in swarm.read] == [
        [genesis(MODEL, 1).tobytes()] * 2
    ] * 2, "both averages must start from the first θ of the run"
    assert all(np.array_equal(peer.replica.weights, swarm.theta) for peer in swarm.peers)


def test_eager_peers_start_from_different_weights(corpus: Corpus) -> None:
    swarm = advanced(Watched.begin(toy(sync=SyncSpec(1, 4, eager=True)), corpus), 4)
    assert np.array_equal(swarm.theta, genesis(MODEL, 1)), "the replicated state is the same"
    for peer, each in zip(swarm.peers, swarm.read[0], strict=True):
        own = (each.anchor - each.local) / 2
        step = 0.7 * (own + 0.9 * own)
        assert np.allclose(
            peer.replica.weights, swarm.theta - step, rtol=0, atol=of_additions(6, 2.0)
        )


@dataclass(frozen=True)
class Recording:
    """A corpus that records which positions were requested."""

    corpus: Corpus
    places: list[int]
    digest: str = ""

    def rows(self, seed: int, first: int, count: int) -> np.ndarray:
        self.places.extend(range(first, first + count))
        return self.corpus.rows(seed, first, count)


@pytest.mark.parametrize("arm", ["plain", "alone", "streaming with feedback", "async"])
def test_modes_train_once_on_each_of_the_first_sequences(corpus: Corpus, arm: str) -> None:
    recording = Recording(corpus, [])
    advanced(Swarm.begin(ARMS[arm], cast(Corpus, recording)), 8)
    assert sorted(recording.places) == list(range(8 * 4))


def test_three_of_four_peers_commit_in_each_step_under_churn(corpus: Corpus) -> None:
    settings = toy(peers=4, batch_sequences=4, churn=Churn())
    recording = Recording(corpus, [])
    swarm = Swarm.begin(settings, cast(Corpus, recording))
    names = set()
    for _ in range(6):
        names |= {peer.name for peer in swarm.peers}
        advanced(swarm, 4)
    assert len(names) == 4 + 5
    assert len(swarm.peers) == 4
    assert tokens_of(swarm) == 6 * 3 * 4 * 1 * 8, "three of four peers committed in each step"
    assert set(recording.places) <= set(range(swarm.book.next_block))
    assert len(recording.places) == 6 * 4 * 4


def test_slow_peer_is_weighted_by_tokens_or_equally(corpus: Corpus) -> None:
    weights = []
    for rule in ("tokens", "equal"):
        swarm = advanced(Watched.begin(toy(slow=1, weights=rule), corpus), 4)
        weights.append([each.weight for each in swarm.read[0]])
    assert weights == [[4 * 2 * 8, 1 * 2 * 8], [1, 1]]


def test_fresh_joiner_has_theta_and_warms_up(corpus: Corpus) -> None:
    swarm = advanced(Swarm.begin(toy(churn=Churn(warmup_steps=4)), corpus), 4)
    joiner = swarm.peers[-1]
    assert np.array_equal(joiner.replica.weights, swarm.theta)
    assert joiner.replica.moments()["step"].tolist() == [0.0]
    advanced(swarm, 1)
    old, new = (np.abs(peer.replica.weights - swarm.theta).max() for peer in swarm.peers)
    assert 0 < new < old


def test_joiner_gets_moments_of_one_member_or_the_mean_of_all(corpus: Corpus) -> None:
    cases: tuple[tuple[Literal["donor", "donors"], int], ...] = (("donor", 1), ("donors", 2))
    for optimizer, count in cases:
        settings = toy(peers=3, batch_sequences=3, churn=Churn(optimizer))
        *stayed, joiner = advanced(Swarm.begin(settings, corpus), 4).peers
        given = [peer.replica.moments() for peer in stayed[:count]]
        for name, moments in joiner.replica.moments().items():
            assert np.array_equal(moments, np.mean([each[name] for each in given], axis=0))
        assert any(given[0]["exp_avg"] != stayed[1].replica.moments()["exp_avg"])


def test_loss_of_a_joiner_is_recorded_for_each_step_since_joining(corpus: Corpus) -> None:
    settings = toy(peers=4, batch_sequences=4, churn=Churn(), lr=0.1)
    swarm = advanced(Swarm.begin(settings, corpus), 4)
    assert swarm.joiners == [], "all peers are there from the start"
    expected = []
    for _ in range(4):
        before = len(swarm.losses)
        advanced(swarm, 1)
        *others, joiner = swarm.losses[before:]
        expected.append(joiner - sum(others) / 3)
    assert swarm.joiners == pytest.approx(expected, abs=1e-12)
    advanced(swarm, 8)
    assert len(swarm.joiners) == 4, "there must be one sum for each step since joining"


def test_every_seed_has_the_same_rows_in_a_different_order(
    corpus: Corpus,
) -> None:
    count = len(corpus.train)
    first, second = (corpus.rows(seed, 0, count) for seed in (1, 2))
    again = corpus.rows(1, count, count)
    held = sorted(map(tuple, corpus.train.tolist()))
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, again.tolist())) == held
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, again), "each pass has a different order"


def test_sequences_drawn_from_all_documents_are_held_out(texts: Path, corpus: Corpus) -> None:
    settings = toy(text=replace(TOY.text, drawn_sequences=20))
    drawn, again = corpus_for(settings, texts), corpus_for(settings, texts)
    assert (len(drawn.train), len(drawn.validation)) == (len(corpus.train) - 20, 20)
    both = np.concatenate((drawn.train, drawn.validation))
    assert sorted(both.tolist()) == sorted(corpus.train.tolist())
    assert drawn.digest == again.digest != corpus.digest
    assert drawn.strangers is not None, "sequences of held-out documents stay held out"
    assert np.array_equal(drawn.strangers, corpus.validation)


def test_trial_is_measured_on_drawn_sequences_and_on_unseen_documents(
    texts: Path, tmp_path: Path
) -> None:
    settings = toy(text=replace(TOY.text, drawn_sequences=20))
    both = run_trial("both", settings, tmp_path / "both", texts)
    corpus, theta = corpus_for(settings, texts), np.load(tmp_path / "both" / THETA)
    replica = Swarm.begin(settings, corpus).peers[0].replica
    expected = [replica.loss_of(theta, rows.astype(np.int64)) for rows in
                (corpus.validation, corpus.strangers) if rows is not None]  # fmt: skip
    assert [both.loss, both.strangers_loss] == [round(loss, 6) for loss in expected]
    assert run_trial("one", TOY, tmp_path / "one", texts).strangers_loss is None


@pytest.mark.parametrize("arm", ["plain", "alone", "churn"])
def test_interrupted_trial_ends_with_the_same_record(texts: Path, tmp_path: Path, arm: str) -> None:
    settings = ARMS[arm]
    whole = run_trial(arm, settings, tmp_path / "whole", texts)
    looks = iter([False] * 9 + [True])
    with pytest.raises(Cut):
        run_trial(arm, settings, tmp_path / "cut", texts, lambda: next(looks))
    resumed = run_trial(arm, settings, tmp_path / "cut", texts)
    told, expected = resumed.plain(), whole.plain()
    assert told.pop("cpu_s") >= 0
    assert expected.pop("cpu_s") >= 0
    assert told == expected
    assert [step for step, _, _ in whole.curve] == [8, 16, 24]
    assert whole.loss is not None
    assert whole.loss < whole.curve[0][1], "the loss falls"
    assert whole.tokens == (24 if arm != "churn" else 12) * 4 * 8
    assert whole.theta != whole.start_theta is not None
    assert len(whole.joiners) == 4 * (arm == "churn")
    kept = [np.load(tmp_path / each / THETA) for each in ("whole", "cut")]
    assert kept[0].tobytes() == kept[1].tobytes()


def test_diverging_arm_ends_early_and_says_so(texts: Path, tmp_path: Path) -> None:
    record = run_trial("wild", toy(outer_lr=1e6), tmp_path / "wild", texts)
    assert record.loss is None
    assert record.tokens < 24 * 4 * 8


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_sequences": 5},
        {"total_steps": 23},
        {"averages": False},
        {"slow": 2},
        {"slow": 1, "inner_steps": 3},
        {"churn": Churn(), "sync": SyncSpec(1, 4)},
    ],
)
def test_invalid_settings_of_an_arm_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid settings of an arm"):
        toy(**changes)
