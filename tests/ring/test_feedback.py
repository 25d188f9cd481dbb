"""Error feedback when the participants change from reduce to reduce, and not all reduces are
committed.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2ptrain.kernels import CodecName, codec
from p2ptrain.ring import SCHEDULES, Schedule
from p2ptrain.state import Residual
from scripts.research.learning.averaging import Contribution, average
from tests.ring.test_lane_progress import crowd_of

NUMEL, MEMBERS, STEPS = 300, 5, 40


class Members:
    """Peers that average, with their residuals. `off` is the sum of the rounded means of all
    committed reduces so far, minus the sum of their exact means.
    """

    def __init__(self, name: CodecName, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.codec = codec(name, 32)
        self.residuals = [Residual(NUMEL) for _ in range(MEMBERS)]
        self.off = np.zeros(NUMEL)

    def reduce(self, step: int, attempt: int, peers: list[int]) -> NDArray[np.float64]:
        """Average random vectors of these peers with random weights. Return the error of the
        mean.
        """
        given = []
        for peer in peers:
            residual = self.residuals[peer]
            residual.begun(step, attempt, len(peers))
            work = self.random.standard_normal(NUMEL, np.float32)
            weight = int(self.random.integers(1, 1000))
            zeros = np.zeros(NUMEL, np.float32)
            given.append(Contribution(weight, work, zeros, residual.owed, residual.aside))
        told = np.empty(NUMEL, np.float32)
        self.codec.dequantise(average(given, self.codec), told)
        works, weights = [each.anchor for each in given], [each.weight for each in given]
        error: NDArray[np.float64] = told - np.average(
            np.asarray(works, np.float64), axis=0, weights=weights
        )
        return error

    def step(self, step: int) -> float:
        """Run an outer step of one to three attempts. Either the last attempt is committed, or none
        is. Return the largest error of an element in the last attempt's mean.
        """
        attempts = int(self.random.integers(1, 4))
        for attempt in range(attempts):
            count = int(self.random.integers(1, MEMBERS + 1))
            peers = self.random.permutation(MEMBERS)[:count].tolist()
            error = self.reduce(step, attempt, peers)
        committed = None if self.random.random() < 0.1 else attempts - 1
        for residual in self.residuals:
            if residual.open_step is not None:
                residual.ended(committed)
        if committed is not None:
            self.off += error
        return float(np.abs(error).max())

    @property
    def owed(self) -> NDArray[np.float64]:
        """The sum of the peers' residuals, in the same unit as the means."""
        owed = [each.owed.astype(np.float64) / each.peers for each in self.residuals]
        return np.asarray(np.sum(owed, 0))


@pytest.mark.parametrize("name", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("seed", range(3))
def test_residuals_cancel_the_error_of_the_committed_means(name: CodecName, seed: int) -> None:
    members = Members(name, seed)
    largest = max(members.step(step) for step in range(STEPS))
    assert np.abs(members.owed).max() > 0.01 * largest
    np.testing.assert_allclose(members.off, -members.owed, atol=1e-2 * largest)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("peers", [2, 5, 12])
def test_peer_finishes_only_after_all_peers_have_rounded(schedule: Schedule, peers: int) -> None:
    """When the first peer has finished, every other peer has computed all its rounding losses, and
    has added its residual to the sums.
    """
    for seed in range(8):
        crowd = crowd_of(schedule, peers, streams=2, depth=3, seed=seed)
        for lost in crowd.lost:
            lost[:] = np.nan
        edges = list(crowd.held)
        while not any(work.finished for work in crowd.works):
            edge = crowd.random.choice(edges)
            crowd.push(*edge)
            crowd.pull(*edge)
        assert not any(np.isnan(lost).any() for lost in crowd.lost)
