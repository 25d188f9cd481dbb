"""A simulated peer trains as a trainer does, and its flat vector is its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from p2ptrain.data.blocks import read_block
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.trainer_config import Optimizer, Precision, TrainerConfig
from p2ptrain.trainer.batch import train_on
from p2ptrain.trainer.genesis import genesis
from p2ptrain.trainer.ranks import Ranks
from p2ptrain.trainer.replica import Replica

if TYPE_CHECKING:
    from tests.trainer.conftest import MakeDesk, Vectors


def blocks(paths: tuple[str, ...], config: TrainerConfig) -> list[np.ndarray]:
    spec = config.model
    return [read_block(Path(path), vocab=spec.vocab, sequence=spec.sequence) for path in paths]


def begun(config: TrainerConfig, *, compiled: bool = False) -> Replica:
    replica = Replica(config.model, config.inner, config.precision, compiled=compiled)
    replica.weights[:] = genesis(config.model, seed=0)
    return replica


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-3)])
def test_a_replica_takes_the_inner_steps_of_a_sharded_trainer(
    make_desk: MakeDesk,
    ranks: Ranks,
    config: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
    precision: Precision,
    tolerance: float,
) -> None:
    config = replace(config, precision=precision)
    desk, replica = make_desk(config), begun(config)
    desk.arena.load()
    desk.optimizer.set_rate(1e-2)
    for rows in blocks(block_paths[:4], config):
        expected = train_on(rows, desk.model, desk.optimizer, ranks, config)
        assert replica.train(rows, 1e-2) == pytest.approx(expected.loss, rel=tolerance)
    desk.arena.store(0)
    moved = vectors.local - vectors.theta
    assert np.abs(moved).max() > 1e-2
    apart = np.linalg.norm(replica.weights - vectors.local)
    assert apart < 100 * tolerance * np.linalg.norm(moved)


def test_a_compiled_replica_takes_the_same_steps_within_the_rounding_of_bf16(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    config = replace(config, precision="bf16")
    plain, compiled = begun(config), begun(config, compiled=True)
    other = begun(config, compiled=True)
    for rows in blocks(block_paths[:4], config):
        expected = plain.train(rows, 1e-2)
        assert compiled.train(rows, 1e-2) == pytest.approx(expected, rel=1e-3)
        other.train(rows, 1e-2)
    moved = plain.weights - genesis(config.model, seed=0)
    apart = np.linalg.norm(compiled.weights - plain.weights)
    assert 0 < apart < 0.2 * np.linalg.norm(moved), "AdamW's first steps are mostly signs"
    assert other.weights.tobytes() == compiled.weights.tobytes(), "peers share what was compiled"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_optimizer_goes_on_from_its_moments_to_the_bit(
    optimizer: Optimizer, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    config = replace(config, inner=replace(config.inner, optimizer=optimizer))
    first, second = begun(config), begun(config)
    for rows in blocks(block_paths[:3], config):
        first.train(rows, 1e-2)
    second.weights[:] = first.weights
    second.set_moments(first.moments())
    (rows,) = blocks(block_paths[3:4], config)
    losses = [each.train(rows, 1e-2) for each in (first, second)]
    assert losses[0] == losses[1]
    assert first.weights.tobytes() == second.weights.tobytes()


def test_measuring_a_loss_moves_nothing(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    replica = begun(replace(config, precision="bf16"))
    rows = np.concatenate(blocks(block_paths[:4], config))
    before = replica.weights.copy()
    other = replica.weights * np.float32(0.5)
    assert replica.loss_of(before, rows) != replica.loss_of(other, rows)
    assert np.array_equal(replica.weights, before)


def test_a_step_that_is_not_finite_is_not_taken(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    replica = begun(config)
    replica.weights[:] = np.inf
    (rows,) = blocks(block_paths[:1], config)
    with pytest.raises(TrainerDiverged):
        replica.train(rows, 1e-2)
