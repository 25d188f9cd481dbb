"""The arithmetic of the sync modes, compared with the formulas in the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from p2ptrain.sync.eager import Eager, coasting
from p2ptrain.sync.mixing import mix


def test_mixing_keeps_its_share_of_local_weights() -> None:
    local, outer = np.array([1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32)
    mix(local, outer, 0.25)
    assert local.tolist() == [2.5, 1.0]


def test_merge_without_mixing_replaces_even_a_nan() -> None:
    local, outer = np.array([math.nan, 1.0], np.float32), np.array([0.1, 0.2], np.float32)
    mix(local, outer, 0.0)
    assert local.tobytes() == outer.tobytes()


def test_eager_peers_have_the_theta_that_the_paper_computes() -> None:
    """Compare two computations of each peer's θ: from the gradient g of the paper, and as the
    shared θ plus the peer's deviation.
    """
    peers, numel, lr, mu = 3, 5, 0.7, 0.9
    random = np.random.default_rng(0)
    deltas = random.standard_normal((6, peers, numel)).astype(np.float32)
    shared, shared_m = np.zeros(numel), np.zeros(numel)
    thetas, momenta = np.zeros((peers, numel)), np.zeros((peers, numel))
    eager = [Eager(numel) for _ in range(peers)]
    before = np.zeros((peers, numel))
    for now in deltas:
        mean = before.mean(axis=0)
        shared_m = mu * shared_m + mean
        shared = shared - lr * (mean + mu * shared_m)
        g = now / peers + mean - before / peers
        momenta = mu * momenta + g
        thetas = thetas - lr * (g + mu * momenta)
        for peer in range(peers):
            eager[peer].step(now[peer], 1 / peers, lr, mu)
        before = now.astype(np.float64)
        found = [shared + each.deviation for each in eager]
        assert np.allclose(found, thetas, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_deviation_moves_as_if_the_same_work_were_repeated(steps: int) -> None:
    eager, lr, mu = Eager(1), 0.7, 0.9
    eager.step(np.array([3.0], np.float32), 0.5, lr, mu)
    before, momentum = float(eager.deviation[0]), float(eager.momentum[0])
    for _ in range(steps):
        eager.step(np.array([3.0], np.float32), 0.5, lr, mu)
    kept, coasted = coasting(mu, steps)
    assert eager.momentum[0] == pytest.approx(kept * momentum)
    assert eager.deviation[0] == pytest.approx(before - lr * coasted * momentum)
