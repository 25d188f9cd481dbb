"""A block is divided among ranks and micro-batches, and an inner step computes what it should."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.data.blocks import read_block
from p2ptrain.errors import ConfigError, TrainerDiverged
from p2ptrain.ipc.frames import FragmentReady, Load, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.arena import map_vector
from p2ptrain.trainer.rank.batch import accumulate, own_pieces, train_on
from p2ptrain.trainer.rank.optimizer import clip_gradients
from p2ptrain.trainer.rank.ranks import Ranks
from tests.rounding import MARGIN, UNIT_BF16, assert_rounded_alike, of_sum
from tests.trainer.reference import flat_of, full, gradient

if TYPE_CHECKING:
    from tests.trainer.conftest import Driver, MakeDriver


@given(sequences=st.integers(1, 40), count=st.integers(1, 8), micro_batch=st.integers(0, 9))
def test_rows_are_used_once_and_ranks_have_the_same_number_of_pieces(
    sequences: int, count: int, micro_batch: int
) -> None:
    if sequences < count:
        return
    rows = np.arange(sequences * 3).reshape(sequences, 3)
    ranks = [
        Ranks(rank, count, None, torch.device("cpu"), None)  # type: ignore[arg-type]
        for rank in range(count)
    ]
    shares = [own_pieces(rows, rank, micro_batch) for rank in ranks]
    assert len({len(pieces) for pieces in shares}) == 1
    assert all(len(piece) <= (micro_batch or sequences) for share in shares for piece in share)
    joined = torch.cat([piece for share in shares for piece in share])
    np.testing.assert_array_equal(joined.numpy(), rows)


@pytest.fixture
def rows(block_paths: tuple[str, ...], config: TrainerConfig) -> np.ndarray:
    spec = config.model
    return read_block(Path(block_paths[0]), vocab=spec.vocab, sequence=spec.sequence)


def test_all_gradients_together_are_clipped_to_the_norm(driver: Driver) -> None:
    driver.arena.load()
    for parameter in driver.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    elements = sum(parameter.numel() for parameter in driver.model.parameters())
    rounding = of_sum(elements)
    norm = clip_gradients(driver.model.parameters(), 0.5)
    assert norm == pytest.approx(math.sqrt(elements), rel=rounding)
    norm = clip_gradients(driver.model.parameters(), 0.0)
    assert norm == pytest.approx(0.5, rel=2 * rounding)


@pytest.mark.parametrize(
    "options", [{}, {"micro_batch": 2}, {"recompute": True}, {"document_token": 9}], ids=str
)
def test_gradient_is_that_of_the_mean_objective_over_all_tokens(
    options: dict[str, Any],
    make_driver: MakeDriver,
    ranks: Ranks,
    config: TrainerConfig,
    rows: np.ndarray,
) -> None:
    config = replace(config, inner=replace(config.inner, z_loss=0.3), **options)
    driver = make_driver(config)
    driver.arena.load()
    summed = accumulate(rows, driver.model, ranks, config)
    made = {name: full(each.grad) for name, each in driver.model.named_parameters()}
    loss, exact = gradient(config, rows, torch.float64)
    tokens = rows[:, 1:].size
    assert summed.item() == pytest.approx(loss, rel=of_sum(tokens))
    _, rounded = gradient(config, rows, torch.float32)
    assert_rounded_alike(flat_of(made, config), exact, rounded)


@pytest.mark.parametrize(("count", "said"), [(1, [False, False, True]), (2, [True, True])])
def test_only_a_single_rank_skips_gradient_sync_between_pieces(
    count: int,
    said: list[bool],
    driver: Driver,
    ranks: Ranks,
    config: TrainerConfig,
    rows: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[bool] = []
    monkeypatch.setattr(driver.model, "set_requires_gradient_sync", heard.append)
    driver.arena.load()
    accumulate(rows, driver.model, replace(ranks, count=count), replace(config, micro_batch=2))
    assert heard == said


def test_weight_decay_applies_to_matrices_but_not_to_gains(driver: Driver) -> None:
    decay = {
        parameter.ndim: group["weight_decay"]
        for group in driver.optimizer.groups
        for parameter in group["params"]
    }
    assert decay == {2: 0.1, 1: 0.0}


def test_diverging_step_leaves_no_gradient_behind(
    driver: Driver, ranks: Ranks, config: TrainerConfig, rows: np.ndarray
) -> None:
    driver.arena.load()
    with torch.no_grad():
        driver.model.get_parameter("norm.weight").mul_(float("inf"))
    with pytest.raises(TrainerDiverged) as caught:
        train_on(rows, driver.model, driver.optimizer, ranks, config)
    assert caught.value.code == "NAN"
    assert all(parameter.grad is None for parameter in driver.model.parameters())


def test_bf16_learns_like_fp32_and_keeps_fp32_weights(
    make_driver: MakeDriver, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    ends = []
    for precision in ("fp32", "bf16"):
        driver = make_driver(replace(config, precision=precision))
        ready = driver.send(Load(0), Train(0, block_paths, 0))[-1]
        assert isinstance(ready, FragmentReady)
        assert {parameter.dtype for parameter in driver.model.parameters()} == {torch.float32}
        ends.append(ready.loss)
    assert ends[0] != ends[1]
    # Each logit, whose magnitude is at most 4 here, is rounded to bf16, and so is its contribution
    # to the loss. The tolerance allows for these errors.
    assert ends[1] == pytest.approx(ends[0], abs=4 * MARGIN * UNIT_BF16)


def test_error_for_an_arena_that_is_too_small_states_both_sizes() -> None:
    fd = os.memfd_create("small")
    try:
        os.ftruncate(fd, 4 * 100)
        assert map_vector(fd, 100).shape == (100,)
        with pytest.raises(ConfigError, match="holds 400 bytes; the model's layout needs 404"):
            map_vector(fd, 101)
    finally:
        os.close(fd)
