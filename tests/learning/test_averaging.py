"""The average that `scripts/compare` computes in one process equals that of a real ring, bit for
bit."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.kernels import CodecName
from scripts.research.learning.averaging import Contribution, average
from tests.ring.conftest import Build, build

__all__ = ["build"]

WEIGHTS = [(3,), (5, 3), (7, 7, 7, 7), (100, 1, 50, 1, 20_000)]


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: f"N={len(weights)}")
@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
def test_average_equals_that_of_threads_and_sockets(
    build: Build, codec: CodecName, weights: tuple[int, ...]
) -> None:
    ring = build(weights, 10_007, codec=codec, block=128)
    contributions = [
        Contribution(weight, ring.theta, local)
        for weight, local in zip(weights, ring.locals, strict=True)
    ]
    ring.run()
    payload = average(contributions, ring.requests[0].codec)
    assert {each.tobytes() for each in ring.payloads} == {payload}


def test_rounding_errors_to_correct_later_equal_those_of_the_ring(build: Build) -> None:
    ring = build((4, 1, 2), 5000, codec="int4")
    owes = np.random.default_rng(3).standard_normal((3, 5000)).astype(np.float32)
    ring.residuals = dict(enumerate(owes))
    ring.residuals_out = {me: np.empty(5000, np.float32) for me in range(3)}
    loses = np.empty((3, 5000), np.float32)
    contributions = [
        Contribution(weight, ring.theta, ring.locals[me], owes[me], loses[me])
        for me, weight in enumerate((4, 1, 2))
    ]
    ring.run()
    payload = average(contributions, ring.requests[0].codec)
    assert {each.tobytes() for each in ring.payloads} == {payload}
    assert [loses[me].tobytes() for me in range(3)] == [
        ring.residuals_out[me].tobytes() for me in range(3)
    ]
