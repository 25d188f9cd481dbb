"""The codecs: how pseudo-gradients are compressed, added and applied, with the same bits on all
peers.

A codec is a format with a name and a block length; cython/codec_impl.h defines the formats. Vectors
are one-dimensional, C-contiguous float32 of any length and alignment. Payloads are byte buffers of
exactly `encoded_bytes(numel)`. A vector can be split after any whole block: the corresponding slice
of the payload starts at `encoded_bytes(start)`. The caller provides the outputs, because allocating
memory takes longer than any kernel. The GIL is released. A *variant* is a kernel compiled for one
instruction set, such as AVX2. All variants give the same bits as `kernels.reference`, on all
machines.

A payload's *peak* is the largest magnitude that it represents. For int8 and int4 it is computed
only from the scales, and is valid for the codes that `quantise` writes. The codes -128 and -8,
which only a malicious peer writes, exceed it by 1/127 and 1/7 (the codec's `reach`). Functions that
add or write a payload also return its peak, at no extra cost.

This module knows nothing about peers, parts or steps. After a fault the content of the output is
undefined, except that `outer_step` checks the whole payload before it changes anything.

All functions raise ValueError or TypeError for buffers whose sizes or types do not match (our own
bug). They raise BadScale for an invalid payload, NonFinite for values that cannot be quantised, and
MachineUnfit if a requested variant does not run on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import MachineUnfit, P2PTrainError

try:
    from p2ptrain.kernels import _codecs
except ImportError as exc:
    raise ImportError("the kernels have not been compiled: run scripts/setup") from exc

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in the standard library from Python 3.12 on

Floats: TypeAlias = "NDArray[np.float32] | Buffer"
Bytes: TypeAlias = "NDArray[np.uint8] | Buffer"

CodecName = Literal["fp32", "fp16", "int8", "int4"]
CODECS: tuple[CodecName, ...] = get_args(CodecName)
"""The names of the codecs, in the order of their numbers in cython/codec_impl.h."""

BLOCK_MAX: int = _codecs.BLOCK_MAX
VARIANTS: tuple[str, ...] = _codecs.variants()
"""The variants that this machine can run, fastest first. The first is used by default."""

_NOT_FINITE = 1

_GROWTH = {"fp32": 1.0, "fp16": 1 + 2.0**-11, "int8": 1 + 2.0**-21, "int4": 1 + 2.0**-7 + 2.0**-14}
"""`growth` of each codec. int4 rounds its scale up to the 8 significant bits of bf16."""
_REACH = {"fp32": 1.0, "fp16": 1.0, "int8": 128 / 127, "int4": 8 / 7}
_LOSS = {"fp32": 0.0, "fp16": 2.0**-11, "int8": 0.501 / 127, "int4": 0.505 / 7}

UNBOUNDED = 2.0**100
"""The largest magnitude that any codec accepts."""


class NonFinite(P2PTrainError):
    """A block to be quantised contains a NaN, an infinity, or a value too large for the codec."""

    default_code = "NAN"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} contains a NaN, an infinity or a value that is too large")
        self.block = block


class BadScale(P2PTrainError):
    """A block of a payload contains something that `quantise` never writes: a scale that is
    negative, NaN, infinite or too large, or, in codecs without scales, a value that is NaN,
    infinite or too large.

    The payload came from another peer, which is at fault.
    """

    default_code = "PAYLOAD-SCALE"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} contains an invalid scale or value")
        self.block = block


@dataclass(frozen=True, slots=True)
class Codec:
    """The codec of this name with blocks of `block` elements, the same for all peers of a run. The
    module's docstring describes the arguments of the methods.

    fp32 and fp16 have no scales. Their blocks only determine where vectors can be split, and where
    a fault is reported.

    Raises ValueError for an unknown name or an invalid block length.
    """

    name: CodecName
    block: int
    _number: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name not in CODECS or not 1 <= self.block <= BLOCK_MAX:
            raise ValueError(
                f"there is no codec {self.name!r} with blocks of {self.block} elements"
            )
        object.__setattr__(self, "_number", CODECS.index(self.name))

    def encoded_bytes(self, numel: int) -> int:
        """Return the bytes of the payload of `numel` elements."""
        return _codecs.encoded_bytes(self._number, numel, self.block)

    def quantise(self, src: Floats, out: Bytes, *, variant: str = "") -> float:
        """Compress a vector: out = q(src). Return the peak of `out`."""
        return self._run(_codecs.quantise, variant, src, out)[1]

    def dequantise(self, payload: Bytes, out: Floats, *, variant: str = "") -> None:
        """Decompress a payload: out = deq(payload)."""
        self._run(_codecs.dequantise, variant, payload, out)

    def quantise_difference(
        self,
        theta: Floats,
        local: Floats,
        weight: float,
        out: Bytes,
        *,
        residual: Floats | None = None,
        residual_out: Floats | None = None,
        variant: str = "",
    ) -> float:
        """Compute a peer's own contribution, in one pass: out = q(sum), sum = weight · (θ − local).

        `residual`, which holds the errors of earlier steps, is added to the sum. `residual_out`
        receives the error of this step, sum − deq(out), and may be `residual` itself. Each of them
        is optional; a missing residual counts as zeros. Return the peak of `out`.
        """
        arguments = (theta, local, weight, out, residual, residual_out)
        return self._run(_codecs.quantise_difference, variant, *arguments)[1]

    def add_difference(
        self,
        payload: Bytes,
        theta: Floats,
        local: Floats | None,
        weight: float,
        total: Floats,
        *,
        residual: Floats | None = None,
        variant: str = "",
    ) -> float:
        """Add a received sum and our own contribution, without quantising the result: total =
        deq(payload) + weight · (θ − local) + residual.

        Without `local` nothing is subtracted from θ. To add up several sums, pass the vector of the
        total as both `theta` and `total`. Return the peak of `payload`.
        """
        arguments = (payload, theta, local, weight, total, residual)
        return self._run(_codecs.add_difference, variant, *arguments)[0]

    def add_difference_requantise(
        self,
        payload: Bytes,
        theta: Floats,
        local: Floats | None,
        weight: float,
        divisor: float,
        out: Bytes,
        *,
        residual: Floats | None = None,
        residual_out: Floats | None = None,
        variant: str = "",
    ) -> tuple[float, float]:
        """Compute one hop of a ring, in one pass: out = q(sum / divisor), where sum = deq(payload)
        + weight · (θ − local) + residual.

        `out` may be `payload`. Without `local` nothing is subtracted from θ. `divisor` is 1 on all
        hops except the last. Residuals are as in `quantise_difference`, in units of the sum:
        residual_out = sum − divisor · deq(out). Return the peaks of `payload` and of `out`.
        """
        arguments = (payload, theta, local, weight, divisor, out, residual, residual_out)
        return self._run(_codecs.add_difference_requantise, variant, *arguments)

    def outer_step(
        self,
        theta: Floats,
        momentum: Floats,
        payload: Bytes,
        lr: float,
        mu: float,
        *,
        variant: str = "",
    ) -> None:
        """Take a Nesterov step in place, in one pass: m ← μ m + Δ, θ ← θ − lr (Δ + μ m), where Δ =
        deq(payload).

        The step is elementwise, so threads can share the work: give each thread the slices of a
        range that starts at a block. In this case call `check` on the whole payload before the
        threads start, so that nothing is applied if any part of the payload is invalid.
        """
        self._run(_codecs.outer_step, variant, theta, momentum, payload, lr, mu)

    def check(self, payload: Bytes, numel: int, *, variant: str = "") -> None:
        """Raise BadScale unless `quantise` could have written every scale and, in fp32 and fp16,
        every value. Every code of int8 and int4 is accepted, since with a valid scale it represents
        a finite number.
        """
        self._run(_codecs.check, variant, payload, numel)

    def peak(self, payload: Bytes, numel: int, *, variant: str = "") -> float:
        """Check a payload as `check` does, and return its peak. Raises BadScale."""
        return self._run(_codecs.check, variant, payload, numel)[0]

    @property
    def growth(self) -> float:
        """The maximum ratio of a payload's `peak` to its vector's largest magnitude. In addition,
        fp16 may round a magnitude up by 2^-25.
        """
        return _GROWTH[self.name]

    @property
    def reach(self) -> float:
        """The maximum ratio of a payload's largest magnitude to its `peak`, even in a payload that
        `quantise` did not write. In a payload from `quantise`, no magnitude exceeds the peak.
        """
        return _REACH[self.name]

    @property
    def loss(self) -> float:
        """The maximum rounding error of an element, as a share of its block's largest magnitude."""
        return _LOSS[self.name]

    def _run(self, kernel: _codecs.Kernel, variant: str, *arguments: object) -> tuple[float, float]:
        """Call a kernel. Return the peaks of the payloads that it read and wrote; 0 if there was no
        such payload.
        """
        fault, block, read, made = kernel(self._number, self.block, _index(variant), *arguments)
        if fault:
            raise NonFinite(block) if fault == _NOT_FINITE else BadScale(block)
        return read, made


codec = Codec
"""Call this to get a codec, as in `codec("int8", 256)`."""


def _index(variant: str) -> int:
    """Return the index of a variant. A requested variant is never replaced by a different one."""
    if not variant:
        return 0
    if variant not in VARIANTS:
        raise MachineUnfit(
            f"this machine cannot run the kernel variant {variant!r}",
            code="KERNEL-VARIANT",
            evidence=(f"variants that this machine can run: {', '.join(VARIANTS)}",),
            do="choose one of them, or do not set a variant",
        )
    return VARIANTS.index(variant)
