"""A `Replica` (a simulated peer) trains like a real trainer, and its flat vector contains the
weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.trainer_config import Optimizer, Precision, TrainerConfig
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.rank.batch import train_on
from p2ptrain.trainer.rank.ranks import Ranks
from p2ptrain.trainer.tools.replica import Replica
from tests.trainer.reference import read, reference

if TYPE_CHECKING:
    from tests.trainer.conftest import MakeDriver, Vectors


def begun(config: TrainerConfig, *, compiled: bool = False) -> Replica:
    replica = Replica(config.model, config.inner, config.precision, compiled=compiled)
    replica.weights[:] = genesis(config.model, seed=0)
    return replica


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replica_takes_the_same_inner_steps_as_a_sharded_trainer(
    make_driver: MakeDriver,
    ranks: Ranks,
    config: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
    precision: Precision,
) -> None:
    config = replace(config, precision=precision)
    driver, replica = make_driver(config), begun(config)
    driver.arena.load()
    driver.optimizer.set_rate(1e-2)
    lease = read(block_paths[:4], config)
    expected = reference(config, lease, [1e-2] * 4)
    sharded = [train_on(rows, driver.model, driver.optimizer, ranks, config).loss for rows in lease]
    driver.arena.store(0)
    expected.assert_alike(losses=sharded, weights=vectors.local)
    losses = [replica.train(rows, 1e-2) for rows in lease]
    expected.assert_alike(losses=losses, weights=replica.weights)


def test_compiled_replica_takes_the_same_steps_except_for_rounding(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    config = replace(config, precision="bf16")
    plain, compiled = begun(config), begun(config, compiled=True)
    other = begun(config, compiled=True)
    lease = read(block_paths[:4], config)
    losses = [[each.train(rows, 1e-2) for rows in lease] for each in (plain, compiled, other)]
    expected = reference(config, lease, [1e-2] * 4)
    expected.assert_alike(losses=losses[1], weights=compiled.weights)
    assert plain.weights.tobytes() != compiled.weights.tobytes(), "it was compiled"
    assert other.weights.tobytes() == compiled.weights.tobytes(), "peers share the compiled code"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_optimizer_continues_from_its_moments_bit_for_bit(
    optimizer: Optimizer, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    config = replace(config, inner=replace(config.inner, optimizer=optimizer))
    first, second = begun(config), begun(config)
    for rows in read(block_paths[:3], config):
        first.train(rows, 1e-2)
    second.weights[:] = first.weights
    second.set_moments(first.moments())
    (rows,) = read(block_paths[3:4], config)
    losses = [each.train(rows, 1e-2) for each in (first, second)]
    assert losses[0] == losses[1]
    assert first.weights.tobytes() == second.weights.tobytes()


def test_measuring_a_loss_leaves_the_weights_unchanged(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    replica = begun(replace(config, precision="bf16"))
    rows = np.concatenate(read(block_paths[:4], config))
    before = replica.weights.copy()
    other = replica.weights * np.float32(0.5)
    assert replica.loss_of(before, rows) != replica.loss_of(other, rows)
    assert np.array_equal(replica.weights, before)


def test_step_with_a_nan_loss_is_not_taken(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    replica = begun(config)
    replica.weights[:] = np.inf
    (rows,) = read(block_paths[:1], config)
    with pytest.raises(TrainerDiverged):
        replica.train(rows, 1e-2)


def test_pieces_of_a_batch_give_the_same_step_but_other_targets_do_not(
    config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    whole, pieces, misled = begun(config), begun(config), begun(config)
    (rows,) = read(block_paths[:1], config)
    expected = whole.train(rows, 1e-2)
    assert pieces.train(rows, 1e-2, micro_batch=1) == pytest.approx(expected, rel=1e-5)
    misled.train(rows, 1e-2, targets=np.zeros_like(rows[:, 1:]))
    step = float(np.linalg.norm(whole.weights - begun(config).weights))
    assert np.linalg.norm(pieces.weights - whole.weights) < 0.1 * step
    assert np.linalg.norm(misled.weights - whole.weights) > 0.5 * step
