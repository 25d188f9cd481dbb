"""If contributions are quantised once, the update is a pure function of their bytes, the weights
and the order: everybody can recompute every block of it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3

from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import CODECS, BadScale, CodecName, NonFinite
from p2ptrain.kernels import codec as codec_of
from p2ptrain.proofs.average import AverageTerms, recompute
from p2ptrain.ring import (
    SCHEDULES,
    Contribution,
    Difference,
    ReduceStatistics,
    Schedule,
    quantised_once,
)
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.source import WINDOW
from p2ptrain.state import Residual
from tests.ring.conftest import Build, Ring

WEIGHTS = (100, 1, 50, 7, 20_000, 3)
PRIME = 10_007


def quantise_all(ring: Ring) -> list[Contribution]:
    """Quantise what each peer contributes. The peers no longer use their vectors."""
    codec, made = ring.requests[0].codec, []
    for me, local in enumerate(ring.locals):
        made.append(quantised_once(ring.theta, local, codec))
        ring.sources[me] = made[-1]
        local[:] = np.nan
    return made


def terms_of(ring: Ring) -> AverageTerms:
    request = ring.requests[0]
    return AverageTerms(request.schedule, request.weights, request.numel, request.codec)


def update_of(ring: Ring) -> bytes:
    """Run the reduce, and return the update, which is the same on all peers."""
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    (update,) = {payload.tobytes() for payload in ring.payloads}
    return update


@pytest.mark.parametrize("peers", range(1, 7))
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_update_is_recomputed_from_the_contributions(
    build: Build, schedule: Schedule, codec: CodecName, peers: int
) -> None:
    ring = build(WEIGHTS[:peers], PRIME, schedule=schedule, codec=codec, block=64, streams=1)
    contributions = quantise_all(ring)
    digests = [each.digest for each in contributions]
    payloads = [bytes(each.payload) for each in contributions]
    assert update_of(ring) == recompute(terms_of(ring), 0, PRIME, payloads)
    assert digests == [blake3(payload).hexdigest() for payload in payloads]


@pytest.mark.parametrize("numel", [0, 1, 63, 64, 65, 6 * 64, 6 * 64 + 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_short_updates_are_recomputed(build: Build, schedule: Schedule, numel: int) -> None:
    ring = build((2, 1, 5), numel, schedule=schedule, block=64, streams=1)
    payloads = [each.payload for each in quantise_all(ring)]
    assert update_of(ring) == recompute(terms_of(ring), 0, numel, payloads)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_range_of_blocks_is_recomputed_alone(build: Build, schedule: Schedule) -> None:
    ring = build((5, 1, 9, 4, 2), PRIME, schedule=schedule, codec="int4", block=64, streams=1)
    payloads = [each.payload for each in quantise_all(ring)]
    update, terms, codec = update_of(ring), terms_of(ring), ring.requests[0].codec
    random = np.random.default_rng(1)
    cuts = [0, *terms.part_cuts(), PRIME]
    blocks = [int(each) * 64 for each in random.integers(0, PRIME // 64, 20)]
    for start, stop in [*pairwise(cuts), *pairwise(blocks)]:
        start, stop = min(start, stop), max(start, stop)
        run = slice(codec.encoded_bytes(start), codec.encoded_bytes(stop))
        assert recompute(terms, start, stop, [each[run] for each in payloads]) == update[run]


@pytest.mark.parametrize("block", [256, 250])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_windows_and_lanes_do_not_change_the_update(
    build: Build, schedule: Schedule, block: int
) -> None:
    """Segments are longer than the window in which a contribution is decompressed."""
    numel = 6 * WINDOW + 1009
    ring = build(
        (3, 1, 2), numel, schedule=schedule, block=block, lanes=2, segment_bytes=4 * WINDOW
    )
    payloads = [each.payload for each in quantise_all(ring)]
    assert update_of(ring) == recompute(terms_of(ring), 0, numel, payloads)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_attempt_is_repeated_with_the_same_contributions(build: Build, schedule: Schedule) -> None:
    made = []
    for _ in range(2):
        ring = build((4, 3, 1), PRIME, schedule=schedule, streams=1)
        quantise_all(ring)
        made.append(update_of(ring))
    assert made[0] == made[1]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_contributions_at_the_bound_are_never_accused(
    build: Build, schedule: Schedule, codec: CodecName
) -> None:
    """The bound applies to the values of the bytes, so the bounds on sums and means still hold."""
    ring = build((3, 1, 1000, 7, 20_000), 3000, schedule=schedule, codec=codec, block=64, streams=1)
    sign = np.where(np.arange(3000) % 3, 1, -1).astype(np.float32)
    for local in ring.locals:
        local[:] = ring.theta - np.float32(0.5) * sign
    bound = max(each.peak for each in quantise_all(ring))
    limited = build(
        (3, 1, 1000, 7, 20_000), 3000, schedule=schedule, codec=codec, block=64, streams=1,
        influence_max=bound,
    )  # fmt: skip
    limited.sources = ring.sources
    assert len(update_of(limited)) == ring.requests[0].codec.encoded_bytes(3000)


def test_contribution_must_fit_the_request(build: Build) -> None:
    ring = build((1, 1), 1000, block=64)
    out, mine = ring.payloads[0], ring.requests[0]
    other = quantised_once(ring.theta, ring.locals[0], codec_of("int8", 128))
    with pytest.raises(LocalProtocolError, match="codec of the run"):
        Arithmetic(mine, other, out)
    short = quantised_once(ring.theta[:64], ring.locals[0][:64], mine.codec)
    with pytest.raises(LocalProtocolError, match="1000 elements"):
        Arithmetic(mine, short, out)
    fitting = quantised_once(ring.theta, ring.locals[0], mine.codec)
    with pytest.raises(LocalProtocolError, match="includes its residual already"):
        Arithmetic(mine, fitting, out, residual=np.empty(1000, np.float32))


def test_invalid_contributions_cannot_exist() -> None:
    codec = codec_of("int8", 64)
    with pytest.raises(LocalProtocolError, match="has 68 bytes, not 67"):
        Contribution(bytes(67), 64, codec)
    with pytest.raises(BadScale):
        Contribution(b"\xff" * 68, 64, codec)
    with pytest.raises(NonFinite):
        quantised_once(np.full(64, np.nan, np.float32), np.zeros(64, np.float32), codec)
    with pytest.raises(LocalProtocolError, match="the same length"):
        Difference(np.zeros(3, np.float32), np.zeros(4, np.float32))


def test_contribution_cannot_be_changed_through_its_bytes() -> None:
    made = quantised_once(np.ones(64, np.float32), np.zeros(64, np.float32), codec_of("int8", 64))
    assert made.payload.readonly


@pytest.mark.parametrize("name", ["fp16", "int8", "int4"])
def test_feedback_of_a_contribution_loses_nothing(name: CodecName) -> None:
    """The committed contributions and the residual add up to the committed work. Each step rounds
    one addition to fp32. A step that was skipped leaves the residual as it was, and its work is
    part of the next difference.
    """
    random, codec, steps = np.random.default_rng(3), codec_of(name, 64), 40
    residual, zeros = Residual(PRIME), np.zeros(PRIME, np.float32)
    work, done, told = zeros.copy(), np.zeros(PRIME), np.zeros(PRIME)
    largest = 0.0
    for step in range(steps):
        work += random.standard_normal(PRIME, np.float32)
        residual.begun(step, 0, peers=1)
        made = quantised_once(
            work, zeros, codec, residual=residual.owed, residual_out=residual.aside
        )
        largest = max(largest, made.peak)
        is_committed = bool(random.random() < 0.8)
        residual.ended(0 if is_committed else None)
        if is_committed:
            done += work
            told += values_of(made)
            work[:] = 0
    assert np.abs(done - told).max() > 1e-5 * largest
    assert np.abs(done - told - residual.owed).max() <= steps * 2.0**-24 * largest
    residual.close()


def values_of(contribution: Contribution) -> np.ndarray:
    values = np.empty(contribution.numel, np.float32)
    contribution.codec.dequantise(contribution.payload, values)
    return values


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_feedback_of_contributions_and_of_sums_loses_nothing(
    build: Build, schedule: Schedule, name: CodecName
) -> None:
    """The weights are unequal but do not change. Then the sum of all means differs from the sum of
    the exact means only by what the peers still owe.
    """
    weights, codec = (5, 1, 9, 2), codec_of(name, 64)
    share = np.array(weights, np.float64) / sum(weights)
    owed = [np.zeros(PRIME, np.float32) for _ in weights]
    off, mean = np.zeros(PRIME), np.empty(PRIME, np.float32)
    largest = 0.0
    for step in range(12):
        ring = build(weights, PRIME, schedule=schedule, codec=name, block=64, streams=1)
        for me, local in enumerate(ring.locals):
            local[:] = np.roll(local, 7 * step)
            ring.sources[me] = quantised_once(
                ring.theta, local, codec, residual=owed[me], residual_out=owed[me]
            )
            ring.residuals_out[me] = np.empty(PRIME, np.float32)
        codec.dequantise(update_of(ring), mean)
        for me, request in enumerate(ring.requests):
            owed[me] += ring.residuals_out[me] / np.float32(request.scaled_weight)
        differences = [ring.theta.astype(np.float64) - local for local in ring.locals]
        error = mean - share @ np.array(differences)
        off, largest = off + error, max(largest, float(np.abs(error).max()))
    assert np.abs(off + share @ np.array(owed, np.float64)).max() < 1e-3 * largest
