"""Nobody moves the mean further than agreed, who tries is named, and who keeps to it never is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import CODECS, UNBOUNDED
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import SCHEDULES, ReduceReport, ReduceRequest, own_peak, routes
from p2ptrain.ring.influence import Influence
from p2ptrain.ring.schedules import contributors, owner_of

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
BOUND = 0.5


@every_schedule
@pytest.mark.parametrize("peers", [1, 2, 3, 4, 7, 16])
def test_the_owner_has_everybodys_contribution_once(schedule: str, peers: int) -> None:
    for part in range(peers):
        owner = owner_of(schedule, peers, part)
        assert routes(schedule, peers, owner)[part].owned
        assert sorted(contributors(schedule, peers, part, owner)) == list(range(peers))
        for sender in range(peers):
            assert contributors(schedule, peers, part, sender)[0] == sender


@every_schedule
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("feedback", [False, True])
def test_peers_who_all_go_to_the_bound_are_never_accused(
    build: Callable, schedule: str, codec: str, feedback: bool
) -> None:
    """Every element of everybody at the bound, with the same sign: sums are as large as can be."""
    weights = (3, 1, 1000, 7, 20_000)
    ring = build(weights, 3000, schedule=schedule, codec=codec, block=64, influence_max=BOUND)
    sign = np.where(np.arange(3000) % 3, 1, -1).astype(np.float32)
    for local in ring.locals:
        local[:] = ring.theta - np.float32(BOUND * 0.9999) * sign
    if feedback:
        owed = codec_of(codec, 64).loss * BOUND * len(weights) * sign
        ring.residuals = {me: owed.astype(np.float32) for me in range(5)}
        ring.residuals_out = {me: np.empty(3000, np.float32) for me in range(5)}
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    limit = Influence(ring.requests[0], feedback=feedback).mean_max
    assert BOUND * 0.99 < codec_of(codec, 64).peak(ring.payloads[0], 3000) <= limit


@every_schedule
def test_who_would_move_the_mean_too_far_names_itself_and_sends_nothing_of_it(
    build: Callable, schedule: str
) -> None:
    ring = build((1, 1, 1, 1), 25_000, schedule=schedule, influence_max=BOUND)
    for me, local in enumerate(ring.locals):
        local[:] = ring.theta + np.float32(BOUND * (1.05 if me == 2 else 0.5))
    outcomes = ring.run()
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (ring.peers[2],)
        assert outcome.reason.endswith("is too large for this run: 0.525, not 0.5")


def test_a_peer_on_its_own_keeps_to_the_bound_too(build: Callable) -> None:
    ring = build((1,), 1000, influence_max=BOUND)
    ring.locals[0][:] = ring.theta
    ring.locals[0][999] += 2 * BOUND
    (outcome,) = ring.run().values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == ring.peers


def limits(schedule: str, **settings: object) -> Influence:
    peers = tuple(PeerId(f"peer-{number}") for number in range(4))
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, peers, 0, (1, 1, 2, 4), 1000, codec_of("fp32", 64),
        schedule=schedule, influence_max=BOUND,
    )  # fmt: skip
    return Influence(replace(request, **settings), feedback=False)


def test_the_bound_on_a_sum_follows_the_weights_of_those_who_are_in_it() -> None:
    ring, direct = limits("ring"), limits("direct")
    # Each weighs four times its share of 8.
    sums = [ring.sum_max(0, PeerId(f"peer-{sender}")) / BOUND for sender in range(4)]
    assert sums == pytest.approx([0.5, 1.0, 2.0, 4.0], rel=1e-4)
    sums = [direct.sum_max(0, PeerId(f"peer-{sender}")) / BOUND for sender in range(1, 4)]
    assert sums == pytest.approx([0.5, 1.0, 2.0], rel=1e-4)
    assert ring.mean_max == pytest.approx(BOUND, rel=1e-4) == direct.mean_max


def test_without_a_bound_only_the_codecs_is_left() -> None:
    free = limits("grid", influence_max=UNBOUNDED)
    assert (free.bounded, free.mean_max) == (False, math.inf)
    assert free.sum_max(1, PeerId("peer-0")) == math.inf


@pytest.mark.parametrize("numel", [0, 1, 65_536, 65_537, 200_000])
def test_the_own_peak_is_found_wherever_it_is(numel: int) -> None:
    theta, local = np.zeros(numel, np.float32), np.zeros(numel, np.float32)
    assert own_peak(theta, local) == 0.0
    for at in {0, numel // 2, numel - 1} if numel else set():
        local[at] = 3.0
        assert own_peak(theta, local) == own_peak(local, theta) == 3.0
        local[at] = np.nan
        assert math.isnan(own_peak(theta, local))
        local[at] = -np.inf
        assert own_peak(theta, local) == math.inf
        local[at] = 0.0
