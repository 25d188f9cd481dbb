"""If contributions are quantised once, the mean is nearly as accurate as without."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.kernels import CodecName
from p2ptrain.ring import SCHEDULES, Schedule
from scripts.research.learning.quantised_once import error, on_its_way, once, unequal, usual

ELEMENTS = 1 << 15


def vectors(peers: int) -> list[np.ndarray]:
    return list(np.random.default_rng(peers).standard_normal((peers, ELEMENTS), np.float32))


@pytest.mark.parametrize(("name", "error_max"), [("int8", 0.012), ("int4", 0.19)])
@pytest.mark.parametrize("schedule", ["direct", "grid"])
@pytest.mark.parametrize("peers", [2, 4, 6])
def test_error_of_a_mean_is_small_without_a_ring(
    peers: int, schedule: Schedule, name: CodecName, error_max: float
) -> None:
    for weights in ((1,) * peers, unequal(peers)):
        assert error(once, vectors(peers), weights, usual(name), schedule) < error_max


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("peers", [4, 6])
def test_quantising_once_adds_at_most_a_sixth_to_the_error(
    peers: int, schedule: Schedule, name: CodecName
) -> None:
    given, equal = vectors(peers), (1,) * peers
    before = error(on_its_way, given, equal, usual(name), schedule)
    assert before < error(once, given, equal, usual(name), schedule) < before * 7 / 6
