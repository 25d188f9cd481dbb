"""Measure how honest contributions grow with their inner steps, and how far single elements move.

The runs are short and small: both inner optimizers, all schedules, at the beginning of a run, just
after the warm-up, and later. Each measures the pseudo-gradient after 1 to 20 blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import Optimizer, Schedule
from p2ptrain.kernels import CodecName, codec
from p2ptrain.proofs.sketch_rules import expected_length, length_limit
from p2ptrain.proofs.sketches import length, sketch, unit_exponent_of
from p2ptrain.trainer.tools.replica import one_thread
from tests.acceptance.measures.setting import Line, line
from tests.acceptance.trust.simulated_peer import Floats, SimulatedPeer, inner_spec

BLOCKS_MAX = 20
PEAK_MAX = 1.3
"""The bound on an element, in units of the sum of the learning rates, that is tried."""

CASES: tuple[tuple[Optimizer, Schedule, int], ...] = (
    ("adamw", "wsd", 2),
    ("muon", "wsd", 2),
    ("adamw", "cosine", 3),
    ("muon", "cosine", 3),
    ("adamw", "constant", 4),
    ("muon", "constant", 4),
)
"""Optimizer, schedule and seed of each run."""

TOTAL, WARMUP, STARTS = 220, 20, (0, 20, 90, 200)
"""Inner steps of a run and of its warm-up, and where contributions begin. The last one begins in
the decay of the schedule."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A contribution of up to `BLOCKS_MAX` inner steps. `ratios` are lengths after 1, 2, … steps
    divided by their expectations `expected`; `peaks` are the largest elements divided by the sums
    of the learning rates."""

    start: int
    expected: list[float]
    ratios: list[float]
    peaks: list[float]

    @property
    def spread(self) -> float:
        """The largest ratio of two lengths, after division by their expectations."""
        return max(self.ratios) / min(self.ratios)

    @property
    def margin(self) -> float:
        """The smallest limit ÷ length of a peer with fewer inner steps, among peers with all."""
        usual, ratio = self.expected[-1], self.ratios[-1]
        return min(
            length_limit(expected, usual) / max(each / ratio, ratio / each)
            for expected, each in zip(self.expected, self.ratios, strict=True)
        )


def grown(optimizer: Optimizer, schedule: Schedule, seed: int) -> list[Growth]:
    peer = SimulatedPeer(inner_spec(optimizer, schedule, total_steps=TOTAL, warmup=WARMUP))
    point, now, found = peer.start_run(seed), 0, []
    for start in STARTS:
        if start > now:
            point, now = peer.train(point, range(now, start), now)[-1], start
        lease = range(8000 + 100 * seed, 8000 + 100 * seed + BLOCKS_MAX)
        points = peer.train(point, lease, start, every=1)[1:]
        rates = [learning_rate(peer.inner, start + number) for number in range(BLOCKS_MAX)]
        expected = [expected_length(rates[: number + 1]) for number in range(BLOCKS_MAX)]
        moved = [each.weights - point.weights for each in points]
        found.append(
            Growth(
                start,
                expected,
                [
                    float(np.linalg.norm(each)) / one
                    for each, one in zip(moved, expected, strict=True)
                ],
                [
                    float(np.abs(each).max()) / sum(rates[: number + 1])
                    for number, each in enumerate(moved)
                ],
            )
        )
    return found


def lines() -> Iterator[Line]:
    one_thread()
    yield from _speed_lines()
    yield from _rounding_lines()
    for optimizer, schedule, seed in CASES:
        found = grown(optimizer, schedule, seed)
        for each in found:
            name = f"sketches: {optimizer}, {schedule}, from step {each.start}"
            shown = [round(each.ratios[count - 1] / each.ratios[0], 2) for count in (2, 5, 10, 20)]
            yield line(f"{name}: length ÷ expectation, 2, 5, 10, 20 to 1 steps", shown, "", True)
            value = f"{each.margin:.2f} (spread {each.spread:.2f})"
            yield line(f"{name}: length limit ÷ worst", value, "at least 2", each.margin >= 2)
            peak = max(each.peaks)
            required = f"below {PEAK_MAX}"
            yield line(f"{name}: peak ÷ Σ rates", round(peak, 3), required, peak < PEAK_MAX)


def _speed_lines() -> Iterator[Line]:
    vector = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    took = []
    for _ in range(3):
        began = time.process_time()
        sketch(vector, 1, unit_exponent_of(8.0))
        took.append(time.process_time() - began)
    rate = vector.size / min(took) / 1e6
    yield line("sketches: millions of elements a second", round(rate), "", True)


def _rounding_lines() -> Iterator[Line]:
    """Print the rounding errors that `sketch_rules.ROUNDING` states."""
    vector = np.random.default_rng(1).standard_normal(1 << 20, np.float32)
    names: tuple[tuple[CodecName, int], ...] = (("fp16", 256), ("int8", 256), ("int4", 64))
    for name, block in names:
        error = rounded(vector, name, block) - vector
        share = float(np.linalg.norm(error) / np.linalg.norm(vector))
        yield line(f"sketches: rounding of {name} in blocks of {block}", round(share, 5), "", True)
    sums = sketch(vector, 1, unit_exponent_of(8.0))
    ratio = length(sums) * 2.0 ** unit_exponent_of(8.0) / float(np.linalg.norm(vector))
    yield line("sketches: length of one sketch ÷ true length", round(ratio, 3), "", True)


def rounded(vector: Floats, name: CodecName, block: int) -> Floats:
    """Return the vector after one rounding."""
    kernels = codec(name, block)
    payload, out = np.empty(kernels.encoded_bytes(vector.size), np.uint8), np.empty_like(vector)
    kernels.quantise(vector, payload)
    kernels.dequantise(payload, out)
    return out
