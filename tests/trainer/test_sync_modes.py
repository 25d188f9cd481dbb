"""How the trainer handles Merge, and trains ahead (while earlier work is still being averaged)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from p2ptrain.ipc.frames import Failed, FragmentReady, Load, Merge, Progress, Rebase, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.sync.eager import Eager
from p2ptrain.sync.fragments import fragments
from tests.rounding import of_additions
from tests.trainer.reference import full

if TYPE_CHECKING:
    from tests.trainer.conftest import Driver, MakeDriver, Vectors

BLOCK_TOKENS = 5 * 16
MOVE = np.float32(0.25)
MOVED = of_additions(8, 2.0)
"""Bound on rounding errors. Weights and the numbers added to them are below 2 here. Two compared
values differ by the rounding of at most eight additions: four in an outer step, and two for each of
the two differences from θ."""


def weights(driver: Driver, vectors: Vectors) -> np.ndarray:
    """Return the trainer's weights as a flat vector."""
    flat = np.zeros_like(vectors.theta)
    for name, parameter in driver.model.named_parameters():
        vectors.at(flat, name)[:] = full(parameter).detach().cpu().numpy()
    return flat


def mask(vectors: Vectors, count: int, number: int) -> np.ndarray:
    """Return a mask that is True for the parameters of one fragment."""
    inside = np.zeros(vectors.layout.numel, dtype=bool)
    for start, stop in fragments(vectors.layout, count)[number].ranges:
        inside[start:stop] = True
    inside &= vectors.covered
    return inside


@pytest.fixture
def cut(config: TrainerConfig) -> TrainerConfig:
    """Return a configuration with one fragment for each layer, and one for all other parameters."""
    return replace(config, fragments=3)


def test_only_the_fragment_of_the_step_is_offered(
    make_driver: MakeDriver, cut: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver = make_driver(cut)
    for step in (1, 5):
        vectors.local[:] = 0
        driver.send(Load(step), Train(step, block_paths[:2], 0))
        inside = mask(vectors, 3, step % 3)
        np.testing.assert_array_equal(vectors.local[inside], weights(driver, vectors)[inside])
        assert not vectors.local[~inside].any()


@pytest.mark.parametrize("mixing", [0.0, 0.5])
def test_merge_changes_only_the_fragment_that_was_offered(
    make_driver: MakeDriver,
    cut: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
    mixing: float,
) -> None:
    driver = make_driver(replace(cut, mixing=mixing))
    driver.send(Load(1), Train(1, block_paths[:2], 0), Train(1, block_paths[2:4], 2, ahead=True))
    before, inside = weights(driver, vectors), mask(vectors, 3, 1)
    vectors.theta[inside] += MOVE
    assert driver.send(Merge(2)) == []
    after = weights(driver, vectors)
    np.testing.assert_array_equal(after[~inside], before[~inside])
    expected = mixing * before + (1 - mixing) * vectors.theta
    np.testing.assert_allclose(after[inside], expected[inside], rtol=0, atol=MOVED)


def test_merge_keeps_work_in_a_fragment_whose_average_was_missed(
    make_driver: MakeDriver, cut: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver = make_driver(cut)
    driver.send(Load(0), Train(0, block_paths[:2], 0))
    before = weights(driver, vectors)
    taken, missed = mask(vectors, 3, 0), mask(vectors, 3, 1)
    vectors.theta[taken | missed] += MOVE
    driver.send(Merge(2))
    after = weights(driver, vectors)
    np.testing.assert_array_equal(after[taken], vectors.theta[taken])
    np.testing.assert_allclose(after[missed], before[missed] + MOVE, rtol=0, atol=MOVED)
    rest = mask(vectors, 3, 2)
    np.testing.assert_array_equal(after[rest], before[rest])


def test_blocks_trained_ahead_are_counted_for_the_next_step(
    make_driver: MakeDriver, cut: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    driver = make_driver(cut)
    first = driver.last(FragmentReady, Load(0), Train(0, block_paths[:3], 0))
    assert (first.step, first.blocks, first.tokens) == (0, 3, 3 * BLOCK_TOKENS)
    ahead = driver.send(Train(0, block_paths[3:5], 3, ahead=True))
    assert [type(answer) for answer in ahead] == [Progress, Progress]
    *_, second = driver.send(Merge(1), Train(1, block_paths[5:6], 5))
    assert isinstance(second, FragmentReady)
    assert (second.step, second.blocks, second.tokens) == (1, 3, 3 * BLOCK_TOKENS)


def test_merge_in_a_run_with_one_fragment_acts_like_load(
    driver: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver.send(Load(0), Train(0, block_paths[:2], 0))
    vectors.theta[vectors.covered] += MOVE
    assert driver.send(Merge(1), Train(1, (), 2)) == [FragmentReady(1, 0, (), 0.0)]
    np.testing.assert_array_equal(vectors.local, vectors.theta)


def test_merge_before_any_report_is_reported_as_a_node_bug(driver: Driver) -> None:
    (answer,) = driver.send(Load(0), Merge(1))
    assert isinstance(answer, Failed)
    assert answer.code == "ORDER"


@pytest.fixture
def late(make_driver: MakeDriver, config: TrainerConfig, block_paths: tuple[str, ...]) -> Driver:
    """Return a trainer that gets averages one whole outer step late. It has reported its work of
    outer step 0."""
    driver = make_driver(replace(config, delayed=True))
    driver.send(Load(0), Train(0, block_paths[:2], 0))
    return driver


def test_late_trainer_restarts_at_theta_after_a_report(late: Driver, vectors: Vectors) -> None:
    np.testing.assert_array_equal(weights(late, vectors), vectors.theta)
    assert not np.array_equal(vectors.local, vectors.theta)


def test_late_trainer_does_not_offer_the_same_work_twice(
    late: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    late.send(Train(0, block_paths[2:4], 2, ahead=True))
    ahead = weights(late, vectors) - vectors.theta
    vectors.theta[vectors.covered] += MOVE
    ready = late.last(FragmentReady, Merge(1), Train(1, (), 4))
    assert (ready.blocks, ready.tokens) == (2, 2 * BLOCK_TOKENS)
    np.testing.assert_allclose(vectors.local - vectors.theta, ahead, rtol=0, atol=MOVED)


def test_late_trainer_that_was_left_out_offers_all_its_work(
    late: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    first = vectors.local - vectors.theta
    late.send(Train(0, block_paths[2:4], 2, ahead=True))
    ahead = weights(late, vectors) - vectors.theta
    vectors.theta[vectors.covered] += MOVE
    ready = late.last(FragmentReady, Rebase(1), Train(1, (), 4))
    assert (ready.blocks, ready.tokens) == (4, 4 * BLOCK_TOKENS)
    np.testing.assert_allclose(vectors.local - vectors.theta, first + ahead, rtol=0, atol=MOVED)


@pytest.mark.parametrize("orders", [(), (Rebase(1),), (Rebase(1), Rebase(2))])
def test_late_trainer_that_gets_more_blocks_after_a_wait_offers_all_its_work(
    late: Driver,
    make_driver: MakeDriver,
    config: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
    orders: tuple[Rebase, ...],
) -> None:
    """The trainer had no blocks to train ahead: its lease was used up, or its next blocks had not
    arrived."""
    late.send(*orders, Train(len(orders), block_paths[2:4], 2))
    offered = vectors.local.copy()
    plain = make_driver(config)
    plain.send(Load(0), Train(0, block_paths[:2], 0))
    plain.send(*orders, Train(len(orders), block_paths[2:4], 2))
    np.testing.assert_allclose(offered, vectors.local, rtol=0, atol=MOVED)


PULL = (0.5, 0.7, 0.9)
"""Our share of the average (a half), and the learning rate and momentum of the outer optimizer."""


@pytest.fixture
def eager(make_driver: MakeDriver, config: TrainerConfig, block_paths: tuple[str, ...]) -> Driver:
    """Return a trainer like `late`, except that it continues from its own newest work."""
    driver = make_driver(replace(config, delayed=True, eager=True))
    driver.send(Load(0), Train(0, block_paths[:2], 0, False, *PULL))
    return driver


def test_eager_trainer_continues_from_theta_moved_by_its_own_share(
    eager: Driver, vectors: Vectors
) -> None:
    share, lr, momentum = PULL
    step = lr * (1 + momentum) * share * (vectors.local - vectors.theta)
    assert np.abs(step).max() > 1e-3
    np.testing.assert_allclose(weights(eager, vectors), vectors.theta + step, rtol=0, atol=MOVED)


def test_eager_trainer_offers_only_what_it_trained(
    eager: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    began = weights(eager, vectors)
    eager.send(Train(0, block_paths[2:4], 2, True, *PULL))
    ahead = weights(eager, vectors) - began
    vectors.theta[vectors.covered] += MOVE
    ready = eager.last(FragmentReady, Merge(1), Train(1, (), 4, False, *PULL))
    assert (ready.blocks, ready.tokens) == (2, 2 * BLOCK_TOKENS)
    np.testing.assert_allclose(vectors.local - vectors.theta, ahead, rtol=0, atol=MOVED)


def test_eager_trainer_that_was_left_out_offers_its_work_once(
    eager: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    first, began = vectors.local - vectors.theta, weights(eager, vectors)
    eager.send(Train(0, block_paths[2:4], 2, True, *PULL))
    ahead = weights(eager, vectors) - began
    vectors.theta[vectors.covered] += MOVE
    ready = eager.last(FragmentReady, Rebase(1), Train(1, (), 4, False, *PULL))
    assert (ready.blocks, ready.tokens) == (4, 4 * BLOCK_TOKENS)
    np.testing.assert_allclose(vectors.local - vectors.theta, first + ahead, rtol=0, atol=MOVED)
    # The second offer contains the first work again, so only the newer work is added. The momentum
    # of the first step is kept.
    own = Eager(vectors.layout.numel)
    own.step(-first, *PULL)
    own.step(-first - ahead, *PULL)
    np.testing.assert_allclose(
        weights(eager, vectors), vectors.theta + own.deviation, rtol=0, atol=4 * MOVED
    )


def test_work_offered_again_in_the_same_outer_step_counts_once(
    eager: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    before = weights(eager, vectors)
    eager.send(Rebase(0))
    np.testing.assert_allclose(weights(eager, vectors), before, rtol=0, atol=MOVED)


def test_eager_trainer_restarts_at_theta_if_the_outer_optimizer_changes(
    eager: Driver, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    """A step with the new settings cannot remove what a step with the old settings has added to the
    weights."""
    eager.send(Train(0, block_paths[2:4], 2, True, *PULL))
    amended = (0.5, 0.35, 0.8)
    eager.send(Merge(1), Train(1, (), 4, False, *amended))
    share, lr, momentum = amended
    step = lr * (1 + momentum) * share * (vectors.local - vectors.theta)
    assert np.abs(step).max() > 1e-3
    np.testing.assert_allclose(weights(eager, vectors), vectors.theta + step, rtol=0, atol=MOVED)


def test_trainer_that_loads_theta_starts_at_theta(eager: Driver, vectors: Vectors) -> None:
    eager.send(Load(1))
    np.testing.assert_array_equal(weights(eager, vectors), vectors.theta)
    eager.send(Train(1, (), 4, False, *PULL))
    np.testing.assert_array_equal(vectors.local, vectors.theta)
    np.testing.assert_array_equal(weights(eager, vectors), vectors.theta)
