"""The learning rate is a pure function of the inner step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from p2ptrain.ipc.learning_rate import join_share, learning_rate
from p2ptrain.ipc.trainer_config import InnerSpec


def spec(schedule: str, warmup_steps: int = 10) -> InnerSpec:
    return InnerSpec(5, 4, 1.0, warmup_steps, 110, schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "constant"])
def test_rate_rises_from_above_zero_to_its_peak(schedule: str) -> None:
    rates = [learning_rate(spec(schedule), step) for step in range(11)]
    assert rates[0] == pytest.approx(0.1)
    assert rates == sorted(rates)
    assert rates[9:] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "half_way", "at_the_end", "long_after"),
    [("wsd", 1.0, 0.0, 0.0), ("cosine", 0.55, 0.1, 0.1), ("constant", 1.0, 1.0, 1.0)],
)
def test_rate_falls_according_to_its_schedule(
    schedule: str, half_way: float, at_the_end: float, long_after: float
) -> None:
    rates = [learning_rate(spec(schedule), step) for step in (60, 110, 9_999)]
    assert rates == pytest.approx([half_way, at_the_end, long_after])


def test_wsd_decays_over_its_last_fifth_by_one_minus_the_root() -> None:
    assert learning_rate(spec("wsd"), 90) == 1.0
    assert learning_rate(spec("wsd"), 95) == pytest.approx(0.5)


def test_every_rate_follows_the_formula() -> None:
    """100 inner steps, of which 10 are warm-up. With "wsd" the rate falls in the last 20."""
    for step in range(10, 111):
        x = (step - 10) / 100
        assert learning_rate(spec("cosine"), step) == pytest.approx(
            0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * x)), abs=1e-12
        )
        expected = 1.0 if x <= 0.8 else 1 - math.sqrt((x - 0.8) / 0.2)
        assert learning_rate(spec("wsd"), step) == pytest.approx(expected, abs=1e-7)


def test_run_without_warm_up_starts_at_its_peak() -> None:
    assert learning_rate(spec("constant", warmup_steps=0), 0) == 1.0


def test_joiner_warms_up_for_as_long_as_the_run_sets() -> None:
    inner = replace(spec("wsd"), join_warmup_steps=4)
    assert [join_share(inner, steps) for steps in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert join_share(spec("wsd"), 0) == 1.0
