"""Experiments (arms) that begin at the same trained θ, and the losses reported separately for
copyable tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.research.learning.copying import copied
from scripts.research.learning.corpus import Corpus, corpus_for
from scripts.research.learning.results import read_results
from scripts.research.learning.settings import Start
from scripts.research.learning.swarm import Swarm
from scripts.research.learning.trial import THETA, Cut, measured, run_trial
from tests.learning.conftest import toy
from tests.rounding import of_sum

START = Start(steps=12, batch_sequences=2, lr=1e-2)


def test_arms_with_the_same_random_seed_begin_at_the_same_theta(
    texts: Path, tmp_path: Path
) -> None:
    arms = {"two": toy(start=START), "one": toy(start=START, peers=1, averages=False)}
    assert arms["two"].beginning == arms["one"].beginning != toy(start=START, seed=2).beginning
    for name, settings in arms.items():
        record = run_trial(name, settings, tmp_path / name, texts)
        assert record.tokens == 24 * 4 * 8, "an arm's tokens exclude those of its start"
    (kept,) = texts.glob(f"start-*/{THETA}")
    (start,) = read_results(tmp_path / "none", texts).values()
    assert (start.arm, start.tokens, start.theta) == ("start", 12 * 2 * 8, record.start_theta)
    beginning = arms["one"].beginning
    assert beginning is not None
    run_trial("start", beginning, tmp_path / "start", texts)
    assert kept.read_bytes() == (tmp_path / "start" / THETA).read_bytes()


def test_arm_does_not_train_on_the_text_that_its_start_used(texts: Path) -> None:
    settings = toy(start=START, peers=1, averages=False)
    corpus = corpus_for(settings, texts)
    theta = np.full_like(Swarm.begin(settings, corpus).theta, 0.01)
    swarm = Swarm.begin(settings, corpus, theta.copy())
    seen: list[np.ndarray] = []
    train = swarm.peers[0].replica.train

    def note_rows(rows: np.ndarray, rate: float, **more: Any) -> float:
        seen.append(rows)
        return train(rows, rate, **more)

    swarm.peers[0].replica.train = note_rows  # type: ignore[method-assign]
    assert swarm.peers[0].replica.weights.tobytes() == theta.tobytes()
    swarm.advance()
    assert np.array_equal(seen[0], corpus.rows(settings.seed, START.sequences, 4))


def test_interrupted_start_continues_and_gives_the_same_result(texts: Path, tmp_path: Path) -> None:
    settings = toy(start=START)
    looks = iter([False] * 5 + [True])
    with pytest.raises(Cut):
        run_trial("cut", settings, tmp_path / "cut", texts, lambda: next(looks))
    assert not list(texts.glob(f"start-*/{THETA}"))
    record = run_trial("cut", settings, tmp_path / "cut", texts)
    again = run_trial("again", settings, tmp_path / "again", texts)
    assert (record.loss, record.curve) == (again.loss, again.curve)


def test_token_is_copyable_if_it_followed_the_same_token_last_time() -> None:
    """The comparison is with the last earlier occurrence of the token before it in the same row."""
    rows = np.array([[1, 2, 1, 2, 1, 3, 1, 2], [5, 5, 5, 5, 6, 5, 5, 6]], np.uint16)
    assert copied(rows).astype(int).tolist() == [[0, 0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0]]


def test_record_separates_losses_of_copyable_and_other_tokens(texts: Path, tmp_path: Path) -> None:
    record = run_trial("arm", toy(total_steps=8), tmp_path / "arm", texts)
    assert (record.copied_loss, record.other_loss) == (None, record.loss), "no token occurs twice"
    rows = np.random.default_rng(0).integers(0, 5, (20, 9)).astype(np.uint16)
    corpus, marks = Corpus(rows, rows), copied(rows)
    swarm = Swarm.begin(toy(), corpus)
    told = measured(record, swarm.peers[0].replica, swarm.theta, corpus)
    assert 0.1 < marks.mean() < 0.5
    assert told.copied_loss is not None
    assert told.other_loss is not None
    whole = np.average([told.copied_loss, told.other_loss], weights=[marks.sum(), (~marks).sum()])
    assert told.loss == pytest.approx(whole, rel=of_sum(marks.size))
    assert told.copied_loss != told.other_loss
