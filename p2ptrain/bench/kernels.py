"""`p2ptrain bench kernels`: compare every kernel of every codec with memcpy and other quantisers.

A figure of 1 means as many fp32 elements per second as memcpy copies in the same run. Kernels move
different numbers of bytes, so a second figure compares the bytes read and written with memcpy's
eight per element.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import numpy as np

from p2ptrain import kernels
from p2ptrain.bench.accuracy import relative_errors
from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.peers import PEERS, Load
from p2ptrain.bench.timing import best_times
from p2ptrain.kernels import Codec, CodecName

ELEMENTS = 25_000_000
"""Elements of a vector. They take 100 MB, several times the size of any cache."""
BLOCKS: dict[CodecName, int] = {"fp32": 256, "fp16": 256, "int8": 256, "int4": 64}
MEMCPY = "memcpy"
FP32_BYTES = 4
COPIED_BYTES = 2 * FP32_BYTES
"""Bytes that memcpy moves per element, which it reads and writes."""


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """The speed of one kernel. `ratio` compares elements per second with memcpy; in the outer step,
    the elements of θ and of m both count. `bytes_ratio` compares the bytes read and written."""

    gb_per_s: float
    ratio: float
    bytes_ratio: float


@dataclass(frozen=True, slots=True)
class CodecReport:
    block: int
    bytes_per_element: float
    figures: dict[str, KernelSpeed]
    errors: dict[str, float]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """All figures. `peers` maps each other library to how many times as fast our int8 quantise is,
    or None if the library is not installed."""

    variant: str
    elements: int
    memcpy_gb_per_s: float
    codecs: dict[str, CodecReport]
    peers: dict[str, float | None]

    def lines(self) -> Iterator[FigureLine]:
        yield FigureLine(f"memcpy of {self.elements} fp32", self.memcpy_gb_per_s, "GB/s")
        for name, codec in self.codecs.items():
            called = f"{name}, blocks of {codec.block}, {self.variant}"
            yield FigureLine(f"{called}: encoded", codec.bytes_per_element, "bytes per element")
            for data, error in codec.errors.items():
                yield FigureLine(f"{called}: error of a mean of four, {data}", error, "relative")
            for kernel, figure in codec.figures.items():
                measure = f"{called}: {kernel}"
                yield FigureLine(measure, figure.gb_per_s, "GB/s of fp32")
                yield FigureLine(measure, figure.ratio, "× in elements", MEMCPY)
                yield FigureLine(measure, figure.bytes_ratio, "× in bytes moved", MEMCPY)
        for name, ratio in self.peers.items():
            if ratio is not None:
                yield FigureLine("int8 quantise", ratio, "× as fast as", name)


class KernelBench:
    """Vectors of `elements`, created once, and the calls to measure."""

    def __init__(self, elements: int, variant: str = "") -> None:
        rng = np.random.default_rng(0)
        self.elements, self.variant = elements, variant
        self.theta = rng.standard_normal(elements, dtype=np.float32)
        self.local = self.theta + np.float32(0.01) * rng.standard_normal(elements, dtype=np.float32)
        self.momentum, self.copy, self.residual, self.kept = (
            np.zeros(elements, np.float32) for _ in range(4)
        )

    def memcpy(self) -> None:
        ctypes.memmove(self.copy.ctypes.data, self.theta.ctypes.data, self.theta.nbytes)

    def calls(self, codec: Codec) -> dict[str, Callable[[], object]]:
        theta, local, demand = self.theta, self.local, self.variant
        payload, out = (np.zeros(codec.encoded_bytes(self.elements), np.uint8) for _ in range(2))
        codec.quantise(theta, payload)
        add = partial(codec.add_difference_requantise, variant=demand)
        keep = partial(add, residual=self.residual, residual_out=self.kept)
        sum_up = partial(codec.add_difference, variant=demand)
        outer_step = partial(codec.outer_step, variant=demand)
        return {
            "quantise": lambda: codec.quantise(theta, out, variant=demand),
            "dequantise": lambda: codec.dequantise(payload, self.copy, variant=demand),
            "difference": lambda: codec.quantise_difference(theta, local, 3.0, out, variant=demand),
            "add": lambda: add(out, theta, local, 3.0, 1.0, out),
            "add a vector": lambda: add(out, theta, None, 1.0, 1.0, out),
            "sum up": lambda: sum_up(payload, self.copy, None, 1.0, self.copy),
            "add, with residuals": lambda: keep(out, theta, local, 3.0, 1.0, out),
            "outer step": lambda: outer_step(theta, self.momentum, payload, 0.0, 0.9),
        }


def moved_bytes(payload: float) -> dict[str, float]:
    """Return the bytes that each kernel moves per element, if an encoded element takes `payload`
    bytes."""
    return {
        "quantise": FP32_BYTES + payload,
        "dequantise": FP32_BYTES + payload,
        "difference": 2 * FP32_BYTES + payload,
        "add": 2 * FP32_BYTES + 2 * payload,
        "add a vector": FP32_BYTES + 2 * payload,
        "sum up": 2 * FP32_BYTES + payload,
        "add, with residuals": 4 * FP32_BYTES + 2 * payload,
        "outer step": 4 * FP32_BYTES + payload,
    }


def measure(
    elements: int = ELEMENTS,
    rounds: int = 5,
    variant: str = "",
    block: int | None = None,
    load: Load = import_module,
) -> KernelReport:
    """Measure everything in one run. `block` replaces the default blocks of int8 and int4. `load`
    imports the other libraries.

    Raises MachineUnfit: this machine does not support the variant.
    """
    bench = KernelBench(elements, variant)
    codecs = {name: kernels.codec(name, _block(name, block)) for name in kernels.CODECS}
    calls: dict[str, Callable[[], object]] = {MEMCPY: bench.memcpy}
    for name, codec in codecs.items():
        calls |= {f"{name} {kernel}": call for kernel, call in bench.calls(codec).items()}
    others = {name: make(bench.theta, load) for name, make in PEERS.items()}
    calls |= {name: call for name, call in others.items() if call is not None}
    seconds = best_times(calls, rounds)
    ours = seconds["int8 quantise"]
    return KernelReport(
        variant=variant or kernels.VARIANTS[0],
        elements=elements,
        memcpy_gb_per_s=FP32_BYTES * elements / seconds[MEMCPY] / 1e9,
        codecs={name: _report(codec, elements, seconds) for name, codec in codecs.items()},
        peers={name: seconds[name] / ours if name in seconds else None for name in PEERS},
    )


def _block(name: CodecName, demanded: int | None) -> int:
    return demanded if demanded and name.startswith("int") else BLOCKS[name]


def _report(codec: Codec, elements: int, seconds: dict[str, float]) -> CodecReport:
    payload, figures = codec.encoded_bytes(elements) / elements, {}
    for kernel, moved in moved_bytes(payload).items():
        spent_s, vectors = seconds[f"{codec.name} {kernel}"], 2 if kernel == "outer step" else 1
        speed = seconds[MEMCPY] / spent_s
        figures[kernel] = KernelSpeed(
            gb_per_s=vectors * FP32_BYTES * elements / spent_s / 1e9,
            ratio=vectors * speed,
            bytes_ratio=speed * moved / COPIED_BYTES,
        )
    return CodecReport(codec.block, payload, figures, relative_errors(codec))
