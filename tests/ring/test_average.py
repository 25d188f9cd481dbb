"""The payload is the weighted mean, equal on all peers and bit for bit equal to a simple
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import numpy as np
import pytest

from p2ptrain.dataplane import Uplink, plain_pair
from p2ptrain.errors import ReduceAborted
from p2ptrain.kernels import CODECS, CodecName, reference
from p2ptrain.ring import SCHEDULES, ReduceStatistics, Schedule, routes
from tests.ring.conftest import Build, Connect, Ring

WEIGHTS = [(3,), (1, 1), (5, 3), (1, 2, 4), (7, 7, 7, 7), (100, 1, 50, 1, 20_000_000)]


def dumb_average(ring: Ring) -> bytes:
    """Return the mean that all peers should get, computed part by part in numpy, without streams,
    segments, sockets or threads.
    """
    request = ring.requests[0]
    peers, numel, block = len(request.peers), request.numel, request.codec.block
    # A part is divided among the lanes. With K lanes, the vector is cut as if it had N × K parts.
    runs, blocks = peers * request.lanes, -(-numel // block)
    edges = [min(run * blocks // runs * block, numel) for run in range(runs + 1)]
    dumb = {"ring": _circle, "direct": _star, "grid": _star_of_stars}[request.schedule]
    means = [
        dumb(ring, run // request.lanes, start, stop) / np.float32(peers)
        for run, (start, stop) in enumerate(pairwise(edges))
    ]
    return _encoded(ring, np.concatenate(means)).tobytes()


def _contribution(ring: Ring, peer: int, start: int, stop: int) -> np.ndarray:
    weights = ring.requests[0].weights
    weight = np.float32(len(weights) * weights[peer] / sum(weights))
    return np.asarray(weight * (ring.theta[start:stop] - ring.locals[peer][start:stop]))


def _encoded(ring: Ring, values: np.ndarray) -> np.ndarray:
    codec = reference.codec(ring.requests[0].codec.name, ring.requests[0].codec.block)
    payload = np.empty(codec.encoded_bytes(values.size), np.uint8)
    codec.quantise(values, payload)
    return payload


def _rounded(ring: Ring, values: np.ndarray) -> np.ndarray:
    """Return what a neighbour decodes from the encoding of `values`."""
    codec = reference.codec(ring.requests[0].codec.name, ring.requests[0].codec.block)
    read = np.empty(values.size, np.float32)
    codec.dequantise(_encoded(ring, values), read)
    return read


def _circle(ring: Ring, part: int, start: int, stop: int) -> np.ndarray:
    """Sum around the ring, starting at the peer with the part's number. Each peer rounds the sum
    that it sends.
    """
    total = _contribution(ring, part, start, stop)
    for after in range(1, len(ring.peers)):
        peer = (part + after) % len(ring.peers)
        total = _rounded(ring, total) + _contribution(ring, peer, start, stop)
    return total


def _star(ring: Ring, part: int, start: int, stop: int) -> np.ndarray:
    """Round every contribution once, and add them in ring order, starting at the owner."""
    total = _contribution(ring, part, start, stop)
    for after in range(1, len(ring.peers)):
        peer = (part + after) % len(ring.peers)
        total = total + _rounded(ring, _contribution(ring, peer, start, stop))
    return total


def _star_of_stars(ring: Ring, part: int, start: int, stop: int) -> np.ndarray:
    """Sum along the tree of the plan. A child sends its rounded sum."""

    def total_at(peer: int) -> np.ndarray:
        total = _contribution(ring, peer, start, stop)
        for child in routes("grid", len(ring.peers), peer)[part].sums_from:
            total = total + _rounded(ring, total_at(child))
        return total

    return total_at(part)


@pytest.mark.parametrize("numel", [0, 1, 255, 257, 5000, 100_003])
@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: f"N={len(weights)}")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_peers_get_the_bytes_of_the_reference_average(
    build: Build, schedule: Schedule, weights: tuple[int, ...], numel: int
) -> None:
    ring = build(weights, numel, schedule=schedule)
    before = ring.theta.tobytes(), [local.tobytes() for local in ring.locals]
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}
    assert (ring.theta.tobytes(), [local.tobytes() for local in ring.locals]) == before


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_codec_works_with_every_schedule(
    build: Build, schedule: Schedule, codec: CodecName
) -> None:
    ring = build((5, 1, 9, 4, 2), 30_001, schedule=schedule, codec=codec)
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


@pytest.mark.parametrize("codec", ["int8", "int4"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("peers", [1, 4, 5])
def test_error_feedback_makes_up_for_rounding_losses(
    build: Build, schedule: Schedule, codec: CodecName, peers: int
) -> None:
    """The sum of many means is as accurate as a single mean."""
    numel, repeats = 5000, 12
    lost = np.zeros(numel)
    residuals = {me: np.zeros(numel, np.float32) for me in range(peers)}
    largest = 0.0
    for repeat in range(repeats):
        ring = build(tuple(range(1, peers + 1)), numel, schedule=schedule, codec=codec)
        ring.locals = [np.roll(local, 7 * repeat) for local in ring.locals]
        ring.residuals = residuals
        ring.residuals_out = {me: np.empty(numel, np.float32) for me in range(peers)}
        before = {me: residual.tobytes() for me, residual in residuals.items()}
        outcomes = ring.run()
        assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
        assert {me: residual.tobytes() for me, residual in residuals.items()} == before
        residuals = ring.residuals_out
        mean = np.empty(numel, np.float32)
        ring.requests[0].codec.dequantise(ring.payloads[0], mean)
        share = np.array(ring.requests[0].weights, np.float64) / sum(ring.requests[0].weights)
        true = sum(
            part * (ring.theta.astype(np.float64) - local)
            for part, local in zip(share, ring.locals, strict=True)
        )
        lost += true - mean
        largest = max(largest, np.abs(true - mean).max())
    kept = sum(residual.astype(np.float64) for residual in residuals.values()) / peers
    assert np.abs(lost - kept).max() < 1e-3 * largest
    assert largest > 0


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: f"N={len(weights)}")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mean_is_correct_within_the_codecs_rounding_error(
    build: Build, schedule: Schedule, weights: tuple[int, ...]
) -> None:
    ring = build(weights, 50_000, schedule=schedule)
    ring.run()
    mean = np.empty(50_000, np.float32)
    reference.codec("int8", 256).dequantise(ring.payloads[0], mean)
    share = np.array(weights, np.float64) / sum(weights)
    differences = [ring.theta.astype(np.float64) - local for local in ring.locals]
    true = sum(part * difference for part, difference in zip(share, differences, strict=True))
    largest = sum(
        part * np.abs(difference) for part, difference in zip(share, differences, strict=True)
    ).max()  # fmt: skip
    half_step = 0.5 * largest / 127
    assert np.abs(mean - true).max() <= len(weights) * half_step * 1.01


@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize("segment_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_streams_segments_and_transport_do_not_change_the_mean(
    build: Build, tcp: Connect, streams: int, segment_bytes: int, schedule: Schedule
) -> None:
    connect = tcp if streams == 2 else plain_pair
    ring = build(
        (2, 3, 5, 1, 4),
        20_001,
        schedule=schedule,
        streams=streams,
        segment_bytes=segment_bytes,
        block=128,
        connect=connect,
    )
    ring.run()
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_vector_much_larger_than_the_socket_buffers_is_averaged(
    build: Build, schedule: Schedule
) -> None:
    ring = build((1, 2, 3, 1, 1), 2_000_000, schedule=schedule, segment_bytes=1 << 16)
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    first, *others = ring.payloads
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reduce_runs_over_tls(build: Build, tls: Connect, schedule: Schedule) -> None:
    ring = build((4, 1, 2, 3), 300_000, schedule=schedule, connect=tls)
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_report_and_progress_count_all_bytes(build: Build, schedule: Schedule) -> None:
    ring = build((1, 1, 1, 1), 100_000, schedule=schedule)
    assert ring.reduce(2).progress() == (0, ring.requests[2].plan().bytes_moved)
    outcomes = ring.run()
    for me, report in outcomes.items():
        assert isinstance(report, ReduceStatistics)
        done, total = ring.reduce(me).progress()
        assert done == total
        assert total <= report.sent_bytes + report.received_bytes <= total * 1.03
        assert 0 < report.scatter_s <= report.seconds
        assert report.arithmetic_s > 0
        assert report.cpu_s > 0
        assert tuple(each.peer for each in report.traffic) == ring.requests[me].neighbours
    received = {
        (each.peer, ring.peers[me]): each.received_bytes
        for me, report in outcomes.items()
        if isinstance(report, ReduceStatistics)
        for each in report.traffic
    }
    sent = {
        (ring.peers[me], each.peer): each.sent_bytes
        for me, report in outcomes.items()
        if isinstance(report, ReduceStatistics)
        for each in report.traffic
    }
    assert sent == received


def test_single_peer_reports_no_traffic(build: Build) -> None:
    ring = build((3,), 100_000)
    report = ring.run()[0]
    assert isinstance(report, ReduceStatistics)
    assert (report.traffic, report.sent_bytes, report.waiting_s) == ((), 0, 0.0)


def test_payload_can_be_a_bytearray(build: Build) -> None:
    ring = build((1, 2), 3000)
    plain = [bytearray(len(payload)) for payload in ring.payloads]
    ring.payloads = cast(list[np.ndarray], plain)
    ring.run()
    assert bytes(ring.payloads[0]) == bytes(ring.payloads[1]) == dumb_average(ring)


def test_all_streams_together_keep_to_the_rate_limit(
    build: Build, stopwatch: Callable[[], float]
) -> None:
    ring = build((1, 1, 1), 300_000)
    sent = ring.requests[0].plan().bytes_to(1)
    rate, burst = 600_000, 20_000
    ring.limits = {me: Uplink(rate, burst_bytes=burst) for me in range(3)}
    outcomes = ring.run()
    due_s = (sent - burst) / rate
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    assert due_s <= stopwatch()  # test_pacing.py tests the upper bound
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_slow_sender_is_not_mistaken_for_a_silent_one(build: Build) -> None:
    """Each segment takes longer than the time after which a silent peer is suspected, and the next
    peers in the ring have to wait as long. In production, a segment takes similarly long on the
    slowest acceptable link.
    """
    ring = build((1, 1, 1), 3 * 256, streams=1, segment_bytes=600, silence_s=1.0)
    segment_bytes = ring.requests[0].plan().bytes_to(1) // 4
    ring.limits = {0: Uplink(segment_bytes / 1.15, burst_bytes=0)}
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_reduce_that_exceeds_its_deadline_does_not_blame_anyone(build: Build) -> None:
    ring = build((1, 1, 1), 100_000, deadline_s=0.3)
    ring.limits = {me: Uplink(20_000, burst_bytes=0) for me in range(3)}
    outcomes = ring.run()
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == ()
        assert "deadline" in outcome.reason
