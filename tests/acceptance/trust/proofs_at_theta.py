"""Proofs of the hidden states of a micro-batch at θ: honest computations against wrong weights.

Honest peers compute with different number formats, attention kernels, batch sizes and threads. Each
of their proofs is compared with three checkers. A liar computes with other weights or other data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from p2ptrain.proofs.hidden_states import (
    MANTISSA_ERROR_MAX,
    MISMATCHES_MAX,
    Bits,
    Match,
    chunks_of,
    compare,
    encode,
)
from p2ptrain.trainer.tools.proving import bits_of
from tests.acceptance.measures.setting import Line, line
from tests.acceptance.trust.shares import Share
from tests.acceptance.trust.small_model import SPEC, Weights, model_with, outer_steps, rounded, rows

ROWS = 8
UNUSED_BYTE = 0xFF
"""Does not occur in UTF-8. A model that marks documents with it uses attention with a mask."""

PRECISIONS = ("fp32", "bf16", "autocast")
KERNELS = ("flash", "math", "mask")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute the hidden states."""

    precision: str = "fp32"
    kernel: str = "flash"
    batch: int = 8
    threads: int = 1


WAYS = [
    *(Way(*each) for each in product(PRECISIONS, KERNELS, (1, 3, 8))),
    *(Way(precision, kernel, 3, 2) for precision, kernel in product(PRECISIONS, KERNELS)),
]
"""All combinations with one thread, and a third of them with two threads as well."""

CHECKERS = [Way(precision) for precision in PRECISIONS]


@torch.inference_mode()
def chunks_by(way: Way, weights: Weights, tokens: Tensor) -> Bits:
    """Return the chunks of the last hidden states of `tokens` [rows, T], computed in this way."""
    model = model_with(weights, UNUSED_BYTE if way.kernel == "mask" else None)
    if way.precision == "bf16":
        model = model.to(torch.bfloat16)
    seen: list[Tensor] = []
    model.norm.register_forward_hook(lambda module, given, states: seen.append(states))
    torch.set_num_threads(way.threads)
    with _cast(way), _kernel(way):
        for some in tokens.split(way.batch):
            model(some)
    return np.concatenate([chunks_of(bits_of(row)) for states in seen for row in states])


def _cast(way: Way) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if way.precision == "autocast" else nullcontext()


def _kernel(way: Way) -> AbstractContextManager[object]:
    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    return sdpa_kernel(kinds[way.kernel]) if way.kernel in kinds else nullcontext()


def lines() -> Iterator[Line]:
    steps, tokens = outer_steps(), rows(ROWS, SPEC.sequence, seed=5)
    theta = steps[-1]
    checked = [chunks_by(way, theta, tokens) for way in CHECKERS]
    honest = [match for way in WAYS for match in _compared(chunks_by(way, theta, tokens), checked)]
    yield from _honest_lines(honest)
    liars = {
        "θ of the previous outer step": (steps[-2], tokens),
        "θ of two outer steps before": (steps[-3], tokens),
        "weights in int4, a scale for each matrix": (rounded(theta, 4, None), tokens),
        "weights in int4, a scale for 128 numbers": (rounded(theta, 4), tokens),
        "other rows of data": (theta, rows(ROWS, SPEC.sequence, seed=6)),
    }
    for name, (weights, data) in liars.items():
        yield from _liar_lines(name, _compared(chunks_by(Way(), weights, data), checked))
    in_int8 = _compared(chunks_by(Way(), rounded(theta, 8), tokens), checked)
    found = Share(sum(not each.fits for each in in_int8), len(in_int8))
    yield line("hidden states: weights in int8 rejected", found.at_least(), "", True)
    yield from _speed_lines(checked[0])


def _compared(proved: Bits, checked: list[Bits]) -> list[Match]:
    proofs = encode(proved)
    return [match for chunks in checked for match in compare(chunks, proofs)]


def _honest_lines(matches: list[Match]) -> Iterator[Line]:
    refused = Share(sum(not each.fits for each in matches), len(matches))
    yield line("hidden states: honest chunks rejected", refused.at_most(), "0", refused.count == 0)
    mismatches = max(each.mismatches for each in matches)
    error = max(each.mantissa_error for each in matches)
    margin = min(MISMATCHES_MAX / max(mismatches, 1), MANTISSA_ERROR_MAX / error)
    worst = f"{margin:.2f} ({mismatches} mismatches, mantissa error {error:.2f})"
    yield line("hidden states: limit ÷ worst honest value", worst, "at least 2", margin >= 2)


def _liar_lines(name: str, matches: list[Match]) -> Iterator[Line]:
    found = Share(sum(not each.fits for each in matches), len(matches))
    enough = found.share >= 0.95
    yield line(f"hidden states: {name}, rejected", found.at_least(), "at least 95 %", enough)
    least = min(matches, key=_excess)
    value = f"{_excess(least):.2f} ({least.mismatches} mismatches, {least.mantissa_error:.2f})"
    yield line(f"hidden states: {name}, ÷ limit", value, "at least 1.5", _excess(least) >= 1.5)


def _excess(match: Match) -> float:
    """Return how far above the limits a chunk is: it is rejected if this is above 1."""
    return max(match.mismatches / MISMATCHES_MAX, match.mantissa_error / MANTISSA_ERROR_MAX)


def _speed_lines(chunks: Bits) -> Iterator[Line]:
    """Measure chunks of this model's width, and of a width of 1,024 for four sequences of 1,024."""
    wide = np.random.default_rng(0).standard_normal((128, 32 * 1024), np.float32)
    for name, some in (("width 128", chunks), ("width 1,024", bits_of(torch.from_numpy(wide)))):
        proofs = encode(some)
        encode_s = min(_cpu_s(lambda some=some: encode(some)) for _ in range(3))
        compare_s = min(
            _cpu_s(lambda some=some, proofs=proofs: compare(some, proofs)) for _ in range(3)
        )
        each = f"{1e6 * encode_s / len(some):.0f} and {1e6 * compare_s / len(some):.0f} µs"
        yield line(f"hidden states: encode, compare a chunk, {name}", each, "", True)
    four = 1000 * encode_s
    name = "hidden states: encode 4 sequences of 1,024 tokens, width 1,024"
    yield line(name, f"{four:.0f} ms", "at most 50 ms", four <= 50)


def _cpu_s(work: object) -> float:
    began_s = time.process_time()
    assert callable(work)
    work()
    return time.process_time() - began_s
