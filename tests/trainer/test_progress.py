"""The trainer's report of each inner step: quality, speed, and waiting times."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from p2ptrain.data.blocks import read_block
from p2ptrain.ipc.frames import Load, Progress, Train
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.flops import flops_per_token
from p2ptrain.trainer.rank.batch import InnerStep, accumulate, train_on
from p2ptrain.trainer.rank.loop import Means
from p2ptrain.trainer.rank.ranks import Ranks
from tests.rounding import of_sum

if TYPE_CHECKING:
    from tests.trainer.conftest import Driver, MakeDriver, Vectors

BLOCK_TOKENS = 5 * 16
READING_S, COMPUTING_S = 2.0, 6.0


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def means() -> Means:
    """Return stand-ins for reading and computing, and a clock that only they advance."""
    clock = Clock()

    def read(path: str, *, vocab: int, sequence: int) -> np.ndarray:
        clock.now_s += READING_S
        return read_block(Path(path), vocab=vocab, sequence=sequence)

    def compute(*given: Any) -> InnerStep:
        clock.now_s += COMPUTING_S
        return train_on(*given)

    return Means(read, compute, clock)


@pytest.fixture
def driver(make_driver: MakeDriver, config: TrainerConfig, means: Means) -> Driver:
    return make_driver(config, means=means)


@dataclass(frozen=True, slots=True)
class OnDevice(Ranks):
    """Ranks like those of the fixture, but with the name of a different device."""

    named: str

    @property
    def device_name(self) -> str:
        return self.named


def progress_of(driver: Driver, *orders: Load | Train) -> list[Progress]:
    return [each for each in driver.send(*orders) if isinstance(each, Progress)]


def test_wait_for_data_is_reported_and_included_in_the_step_time(
    driver: Driver, block_paths: tuple[str, ...]
) -> None:
    told = progress_of(driver, Load(0), Train(0, block_paths[:2], 0))
    assert [each.data_wait_s for each in told] == [READING_S] * 2
    assert [each.tokens_per_s for each in told] == [BLOCK_TOKENS / (READING_S + COMPUTING_S)] * 2


@pytest.mark.parametrize(
    ("device", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("cpu", None), ("NVIDIA B200", 2250e12)]
)
def test_mfu_is_reported_if_the_devices_peak_is_known(
    device: str,
    peak: float | None,
    make_driver: MakeDriver,
    means: Means,
    ranks: Ranks,
    config: TrainerConfig,
    block_paths: tuple[str, ...],
) -> None:
    parts = {each.name: getattr(ranks, each.name) for each in fields(Ranks)}
    driver = make_driver(config, ranks=OnDevice(**parts, named=device), means=means)
    (told,) = progress_of(driver, Load(0), Train(0, block_paths[:1], 0))
    flops_per_s = told.tokens_per_s * flops_per_token(config.model)
    assert told.mfu == (None if peak is None else pytest.approx(flops_per_s / peak))


def test_reported_gradient_norm_is_the_norm_before_clipping(
    make_driver: MakeDriver,
    ranks: Ranks,
    config: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
) -> None:
    spec, plain = config.model, make_driver(config)
    plain.arena.load()
    rows = read_block(Path(block_paths[0]), vocab=spec.vocab, sequence=spec.sequence)
    accumulate(rows, plain.model, ranks, config)
    gradients = [each.grad.full_tensor().cpu().numpy() for each in plain.model.parameters()]  # type: ignore[union-attr]
    length = np.linalg.norm(np.concatenate([each.ravel() for each in gradients]))
    clipped = replace(config, inner=replace(config.inner, clip=float(length) / 10))
    (told,) = progress_of(make_driver(clipped), Load(0), Train(0, block_paths[:1], 0))
    assert told.gradient_norm == pytest.approx(length, rel=2 * of_sum(vectors.layout.numel))


def test_reported_learning_rate_is_that_of_the_step(
    make_driver: MakeDriver, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    """A trainer that starts in the middle of the run without an optimizer state warms up."""
    inner = replace(config.inner, join_warmup_steps=4)
    agreed = [learning_rate(inner, step) for step in range(12, 16)]
    driver = make_driver(replace(config, inner=inner))
    told = progress_of(driver, Load(3), Train(3, block_paths[:4], 12))
    assert [each.learning_rate for each in told] == pytest.approx(
        [share * lr for share, lr in zip((0.25, 0.5, 0.75, 1.0), agreed, strict=True)]
    )
    assert {group["lr"] for group in driver.optimizer.groups} == {told[-1].learning_rate}
