"""The orders that a node gives a trainer (Merge is in test_sync_modes), and their effects. There is
one rank, in this process."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from p2ptrain.data.blocks import encode_block, read_block
from p2ptrain.data.pack import PackSpec, pack
from p2ptrain.data.text import standard_library_text
from p2ptrain.ipc.frames import (
    Evaluate,
    Evaluated,
    Failed,
    FragmentReady,
    Load,
    Progress,
    Rates,
    Rebase,
    Stop,
    Train,
)
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.ranks import Ranks
from tests.rounding import of_additions
from tests.trainer.reference import full, read, reference

if TYPE_CHECKING:
    from tests.trainer.conftest import Driver, MakeDriver, Vectors

BLOCK_TOKENS = 5 * 16
MOVED = of_additions(4, 2.0)
"""Bound on rounding errors. Weights are below 2 here. At most two additions
move a weight, and each of the two compared differences takes one subtraction."""


def test_trainer_trains_on_a_lease_and_writes_weights_to_the_arena(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    answers = driver.send(Load(3), Train(3, block_paths[:4], 12))
    progress, ready = [it for it in answers if isinstance(it, Progress)], answers[-1]
    assert isinstance(ready, FragmentReady)
    assert len(progress) == len(answers) - 1
    assert [(p.step, p.inner_step, p.tokens) for p in progress] == [
        (3, 12 + index, (index + 1) * BLOCK_TOKENS) for index in range(4)
    ]
    assert ready == FragmentReady(3, 4 * BLOCK_TOKENS, block_paths[:4], ready.loss)
    assert ready.loss == pytest.approx(np.mean([p.loss for p in progress]))
    for name, parameter in driver.model.named_parameters():
        weights = full(parameter).detach().cpu().numpy()
        np.testing.assert_array_equal(vectors.at(vectors.local, name), weights)
        assert not np.array_equal(weights, vectors.at(vectors.theta, name))


def test_training_is_bit_for_bit_repeatable(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    """Earlier use of random number generators and earlier contents of the shared memory do not
    matter."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        vectors.local.fill(seed)
        losses = [
            (each.inner_step, each.loss)
            for each in make_driver(config).send(Load(0), Train(0, block_paths, 0))
            if isinstance(each, Progress)
        ]
        names = [name for name, _ in make_driver(config).model.named_parameters()]
        trained = {name: vectors.at(vectors.local, name).copy() for name in names}
        results.append((losses, trained))
    (losses, trained), (again, same) = results
    assert losses == again
    assert len(losses) == len(block_paths)
    for name, weights in trained.items():
        np.testing.assert_array_equal(weights, same[name])
        assert not np.array_equal(weights, vectors.at(vectors.theta, name))


def test_amending_rates_equals_setting_them_from_the_start(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    """The last two cases must agree. In the fourth case, the schedule advances by only one step in
    two inner steps. So both use the rate of step 1 of the published schedule, the peak rate."""
    rates, twice = Rates(config.inner.lr / 4), Rates(config.inner.lr / 4, 4, 1, 2, 1)
    inner = replace(config.inner, lr=rates.lr)
    same = replace(config, inner=inner)
    still = replace(config, inner=replace(inner, warmup_steps=0, schedule="constant"))
    trained = []
    for begun, told, first in (
        (config, [rates], 0),
        (same, [], 0),
        (config, [], 0),
        (config, [twice], 4),
        (still, [], 1),
    ):
        make_driver(begun).send(Load(0), *told, Train(0, block_paths[:2], first))
        trained.append(vectors.local.tobytes())
    assert trained[0] == trained[1] != trained[2]
    assert trained[3] == trained[4] != trained[1]


def test_micro_batches_train_like_the_full_batch(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    rates = [learning_rate(config.inner, step) for step in range(len(block_paths))]
    expected = reference(config, read(block_paths, config), rates)
    for micro_batch in (0, 1, 2):
        make_driver(replace(config, micro_batch=micro_batch)).send(
            Load(0), Train(0, block_paths, 0)
        )
        expected.assert_alike(weights=vectors.local)
    assert expected.moved > 4.0


def test_training_reduces_the_loss(driver: Driver, block_paths: tuple[str, ...]) -> None:
    answers = driver.send(Load(0), Train(0, block_paths * 5, 0))
    losses = [answer.loss for answer in answers if isinstance(answer, Progress)]
    assert losses[0] == pytest.approx(math.log(301), abs=0.1)
    assert losses[-1] < losses[0] - 2


def test_load_drops_local_work_and_its_counts(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver.send(Load(0), Train(0, block_paths[:3], 0))
    answers = driver.send(Load(1), Train(1, (), 3))
    assert answers == [FragmentReady(1, 0, (), 0.0)]
    np.testing.assert_array_equal(vectors.local, vectors.theta)


def test_training_continues_after_a_skip_and_the_counts_add_up(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    first = driver.last(FragmentReady, Load(0), Train(0, block_paths[:2], 0))
    before = vectors.local.copy()
    second = driver.last(FragmentReady, Train(1, block_paths[2:4], 2))
    assert (first.step, first.blocks) == (0, 2)
    assert (second.step, second.blocks, second.tokens) == (1, 4, 4 * BLOCK_TOKENS)
    assert not np.array_equal(vectors.local, before)


def test_rebase_of_a_ready_trainer_moves_its_weights_with_theta(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    ready = driver.last(FragmentReady, Load(0), Train(0, block_paths[:2], 0))
    gradient = vectors.theta - vectors.local
    vectors.theta[vectors.covered] += np.float32(0.25)
    again = driver.send(Rebase(1))
    assert again == [replace(ready, step=1)]
    np.testing.assert_allclose(vectors.theta - vectors.local, gradient, rtol=0, atol=MOVED)


def test_two_rebases_count_each_move_of_theta_once(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver.send(Load(0), Train(0, block_paths[:2], 0))
    gradient = vectors.theta - vectors.local
    for step in (1, 2):
        vectors.theta[vectors.covered] += np.float32(0.125)
        driver.send(Rebase(step))
    np.testing.assert_allclose(vectors.theta - vectors.local, gradient, rtol=0, atol=MOVED)


def test_rebase_during_a_lease_keeps_the_work(driver: Driver, block_paths: tuple[str, ...]) -> None:
    answers = driver.send(Load(0), Train(0, block_paths[:4], 0), after={2: Rebase(1)})
    reports = [it for it in answers if isinstance(it, Progress | FragmentReady)]
    steps = [(type(report).__name__, report.step) for report in reports]
    assert len(reports) == len(answers)
    assert steps == [
        *[("Progress", 0)] * 2,
        *[("Progress", 1)] * 2,
        ("FragmentReady", 1),
    ]
    assert isinstance(reports[-1], FragmentReady)
    assert reports[-1].blocks == 4


def test_evaluation_measures_theta_and_does_not_affect_training(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    make_driver(config).send(Load(0), Train(0, block_paths[:6], 0))
    undisturbed = vectors.local.copy()
    evaluate = Evaluate(9, block_paths[6:8])
    answers = make_driver(config).send(
        Load(0), evaluate, Train(0, block_paths[:6], 0), after={3: evaluate}
    )
    first, second = (answer for answer in answers if isinstance(answer, Evaluated))
    assert first == second == Evaluated(9, first.loss, 2 * BLOCK_TOKENS)
    assert first.loss == pytest.approx(math.log(301), abs=0.1)
    np.testing.assert_array_equal(vectors.local, undisturbed)


def test_stop_during_a_lease_ends_training_without_a_report(
    driver: Driver, block_paths: tuple[str, ...]
) -> None:
    answers = driver.send(Load(0), Train(0, block_paths, 0), after={2: Stop()})
    assert [type(answer) for answer in answers] == [Progress, Progress]


@pytest.mark.parametrize("order", [Train(0, (), 0), Rebase(1)])
def test_order_before_the_first_load_is_refused(driver: Driver, order: Train | Rebase) -> None:
    (answer,) = driver.send(order)
    assert isinstance(answer, Failed)
    assert (answer.code, answer.evaluation) == ("ORDER", None)


def test_nan_loss_is_reported_and_no_step_is_taken(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    healthy = vectors.theta.copy()
    vectors.theta[:] = np.nan
    answers = driver.send(Load(0), Evaluate(4, block_paths[:1]), Train(0, block_paths, 0))
    failures = [it for it in answers if isinstance(it, Failed)]
    assert [(it.code, it.evaluation) for it in failures] == [("NAN", 4), ("NAN", None)]
    assert len(failures) == len(answers)
    assert "inner step 0" in failures[1].text
    assert not any(part.state for part in driver.optimizer.parts)
    vectors.theta[:] = healthy
    answers = driver.send(Load(0), Train(0, block_paths[:1], 0))
    assert [type(answer) for answer in answers] == [Progress, FragmentReady]


def test_damaged_block_ends_the_lease_and_keeps_earlier_work(
    driver: Driver, block_paths: tuple[str, ...], tmp_path: Path
) -> None:
    damaged = bytearray(Path(block_paths[0]).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    lease = (*block_paths[:2], str(tmp_path / "damaged"), block_paths[2])
    failed = driver.last(Failed, Load(0), Train(0, lease, 0))
    assert (failed.code, failed.evaluation) == ("DATA", None)
    assert "checksum" in failed.text
    ready = driver.last(FragmentReady, Train(0, block_paths[2:4], 2))
    assert (ready.blocks, ready.tokens) == (4, 4 * BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class WithAnother(Ranks):
    """This rank, and a simulated second rank on a host where some blocks cannot be read."""

    lacks: Iterator[bool]

    def any_rank(self, yes: bool) -> bool:
        return yes or next(self.lacks)

    def any_words(self, words: str) -> str:
        return words or "it has rotted"


def test_block_that_a_different_rank_cannot_read_ends_the_lease_here(
    make_driver: MakeDriver, config: TrainerConfig, ranks: Ranks, block_paths: tuple[str, ...]
) -> None:
    """This rank can read the block. If it continued alone, the two ranks would wait for each other
    in different collectives."""
    parts = {each.name: getattr(ranks, each.name) for each in fields(Ranks)}
    lacks = iter([False, False, True, False, True])
    driver = make_driver(config, ranks=WithAnother(**parts, lacks=lacks))
    answers = driver.send(Load(0), Train(0, block_paths[:4], 0))
    assert [type(each) for each in answers] == [Progress, Progress, Failed]
    said = "another rank reports: it has rotted"
    assert answers[-1] == Failed("DATA", said)
    assert driver.send(Evaluate(7, block_paths[:2]))[-1] == Failed("DATA", said, 7)


def test_block_of_a_different_batch_size_is_refused(
    driver: Driver, block_paths: tuple[str, ...], tmp_path: Path
) -> None:
    rows = read_block(Path(block_paths[0]), vocab=301, sequence=16)
    (tmp_path / "short").write_bytes(encode_block(rows[:3], 301))
    failed = driver.last(Failed, Load(0), Train(0, (str(tmp_path / "short"),), 0))
    assert failed.code == "DATA"
    assert "3 sequences; the run has 5" in failed.text


def test_error_for_a_missing_block_names_the_evaluation(driver: Driver, tmp_path: Path) -> None:
    (answer,) = driver.send(Load(0), Evaluate(11, (str(tmp_path / "gone"),)))
    assert isinstance(answer, Failed)
    assert (answer.code, answer.evaluation) == ("DATA", 11)


def test_loss_falls_on_real_text(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, tmp_path: Path
) -> None:
    model, inner = config.model, config.inner
    text = standard_library_text(250_000)
    packed = pack(text, PackSpec(model.vocab, model.sequence, inner.batch_sequences, 4))
    paths = [str(tmp_path / f"{index}") for index in range(84)]
    for path, block in zip(paths, packed.validation + packed.train, strict=False):
        Path(path).write_bytes(block)
    driver, held_out = make_driver(config), tuple(paths[:4])
    answers = driver.send(Load(0), Evaluate(0, held_out), Train(0, tuple(paths[4:]), 0))
    first = next(answer for answer in answers if isinstance(answer, Evaluated))
    vectors.theta[:] = vectors.local
    last = driver.last(Evaluated, Load(1), Evaluate(1, held_out))
    assert last.loss < first.loss - 0.5
