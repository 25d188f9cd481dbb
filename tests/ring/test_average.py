"""The payload is the weighted mean: to the bit what the definition says, and equal on all peers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from p2ptrain.dataplane import plain_pair
from p2ptrain.errors import ReduceAborted
from p2ptrain.kernels import encoded_bytes, reference
from p2ptrain.ring import ReduceReport, TokenBucket

WEIGHTS = [(3,), (1, 1), (5, 3), (1, 2, 4), (7, 7, 7, 7), (100, 1, 50, 1, 20_000_000)]


def dumb_average(ring: object) -> bytes:
    """The same algorithm without streams, segments, sockets or threads: part by part in numpy."""
    request = ring.requests[0]
    peers, numel, block = len(request.peers), request.numel, request.block
    blocks, weights, total = -(-numel // block), request.weights, float(sum(request.weights))
    if peers == 1:
        whole = np.empty(encoded_bytes(numel, block), np.uint8)
        codec = reference.codec("int8", block)
        codec.quantise_difference(ring.theta, ring.locals[0], 1.0, whole)
        return whole.tobytes()
    # A part is cut for each stream, and the cuts of all streams are those of N × K parts.
    runs = peers * request.streams
    edges = [min(run * blocks // runs * block, numel) for run in range(runs + 1)]
    return b"".join(
        _travel(ring, run // request.streams, start, stop, weights, total, block)
        for run, (start, stop) in enumerate(pairwise(edges))
    )


def _travel(
    ring: object,
    part: int,
    start: int,
    stop: int,
    weights: tuple[int, ...],
    total: float,
    block: int,
) -> bytes:
    peers = len(weights)
    theta = ring.theta[start:stop]
    codec = reference.codec("int8", block)
    payload = np.empty(codec.encoded_bytes(stop - start), np.uint8)
    if start == stop:
        return b""
    codec.quantise_difference(theta, ring.locals[part][start:stop], weights[part], payload)
    for after in range(1, peers):
        peer = (part + after) % peers
        codec.add_difference_requantise(
            payload.copy(), theta, ring.locals[peer][start:stop], weights[peer],
            total if after == peers - 1 else 1.0, payload,
        )  # fmt: skip
    return payload.tobytes()


@pytest.mark.parametrize("numel", [0, 1, 255, 257, 5000, 100_003])
@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: f"N={len(weights)}")
def test_all_peers_hold_the_bytes_of_the_dumb_average(
    build: Callable, weights: tuple[int, ...], numel: int
) -> None:
    ring = build(weights, numel)
    before = ring.theta.tobytes(), [local.tobytes() for local in ring.locals]
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}
    assert (ring.theta.tobytes(), [local.tobytes() for local in ring.locals]) == before


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: f"N={len(weights)}")
def test_the_mean_is_right_within_what_the_codec_rounds(
    build: Callable, weights: tuple[int, ...]
) -> None:
    ring = build(weights, 50_000)
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
@pytest.mark.parametrize("transport", ["pair", "tcp"])
def test_streams_segments_and_transport_change_no_mean(
    build: Callable, tcp: Callable, streams: int, segment_bytes: int, transport: str
) -> None:
    connect = tcp if transport == "tcp" else plain_pair
    ring = build(
        (2, 3, 5), 20_001, streams=streams, segment_bytes=segment_bytes, block=128, connect=connect
    )
    ring.run()
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_a_vector_much_larger_than_the_socket_buffers_goes_round(build: Callable) -> None:
    ring = build((1, 2, 3), 6_000_000, segment_bytes=1 << 16)
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    first, *others = ring.payloads
    assert all(np.array_equal(first, other) for other in others)


def test_a_ring_runs_over_tls(build: Callable, tls: Callable) -> None:
    ring = build((4, 1, 2), 30_000, connect=tls)
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_the_report_counts_the_bytes_and_progress_ends_at_all_of_them(build: Callable) -> None:
    ring = build((1, 1, 1, 1), 100_000)
    assert ring.reduce(2).progress() == (0, ring.requests[2].plan().bytes_moved)
    outcomes = ring.run()
    for me, report in outcomes.items():
        assert isinstance(report, ReduceReport)
        done, total = ring.reduce(me).progress()
        assert done == total
        assert total <= report.sent_bytes + report.received_bytes <= total * 1.02
        assert 0 < report.scatter_s <= report.seconds
        assert report.cpu_s > 0
    sent = [outcomes[me].sent_bytes for me in range(4)]
    assert sent == [outcomes[(me + 1) % 4].received_bytes for me in range(4)]


def test_the_payload_may_be_a_bytearray(build: Callable) -> None:
    ring = build((1, 2), 3000)
    ring.payloads = [bytearray(len(payload)) for payload in ring.payloads]
    ring.run()
    assert bytes(ring.payloads[0]) == bytes(ring.payloads[1]) == dumb_average(ring)


def test_a_rate_limit_is_kept_by_all_streams_together(
    build: Callable, stopwatch: Callable[[], float]
) -> None:
    ring = build((1, 1, 1), 300_000)
    sent = sum(stream.bytes_sent for stream in ring.requests[0].plan().streams)
    rate, burst = 600_000, 20_000
    ring.limits = {me: TokenBucket(rate, burst_bytes=burst) for me in range(3)}
    outcomes = ring.run()
    due_s = (sent - burst) / rate
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    assert due_s <= stopwatch() <= due_s * 1.5 + 0.2
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_a_slow_sender_is_no_silent_one(build: Callable) -> None:
    """Each segment takes several times as long as silence is suffered, for all peers behind too."""
    ring = build((1, 1, 1), 6 * 256, streams=1, segment_bytes=600, silence_s=0.1)
    ring.limits = {0: TokenBucket(2000, burst_bytes=0)}
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes
    assert {payload.tobytes() for payload in ring.payloads} == {dumb_average(ring)}


def test_a_reduce_that_runs_over_its_deadline_blames_nobody(build: Callable) -> None:
    ring = build((1, 1, 1), 100_000, deadline_s=0.3)
    ring.limits = {me: TokenBucket(20_000, burst_bytes=0) for me in range(3)}
    outcomes = ring.run()
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == ()
        assert "deadline" in outcome.reason
