"""The vector that a peer contributes to a reduce: a difference in memory, or quantised bytes.

`Difference` is θ − local weights, in fp32. Only the peer itself knows its exact values.

`Contribution` was quantised once, before the reduce. Its bytes and their digest are known before
the participants are, and the reduce adds exactly the values that these bytes represent. So the
update is a pure function of the contributions, the weights and the order, and anybody who has the
contributions can recompute it (`p2ptrain.proofs.average`). Nodes do so in runs with claims.

A source yields its values in windows. A `Difference` yields one, without a copy. A `Contribution`
is decompressed piece by piece, into memory that stays in a processor's cache. The kernels handle
each block on its own, so windows do not change any bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import Digest
from p2ptrain.kernels import Codec

Floats = NDArray[np.float32]

WINDOW = 1 << 17
"""Elements that a contribution decompresses at a time, rounded down to whole blocks: 512 KiB of
fp32, which fit into the second-level cache. Shorter windows spend more time in the interpreter."""

_ZEROS = np.zeros(WINDOW, np.float32)
_ZEROS.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Window:
    """The elements [start, stop), which are whole blocks. Their values are `vector` − `subtrahend`,
    and are valid until the next window is requested.
    """

    start: int
    stop: int
    vector: Floats
    subtrahend: Floats


class Source(Protocol):
    """The values that a peer contributes, before they are multiplied by its weight."""

    @property
    def numel(self) -> int: ...

    def windows(self, start: int, stop: int) -> Iterator[Window]:
        """Yield the elements [start, stop), which are whole blocks, in order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """θ − local. Both vectors have the same length, and are only read.

    Raises LocalProtocolError for vectors of different lengths.
    """

    theta: Floats
    local: Floats

    def __post_init__(self) -> None:
        if self.theta.ndim != 1 or self.theta.shape != self.local.shape:
            raise LocalProtocolError("θ and the local weights must have the same length")

    @property
    def numel(self) -> int:
        return self.theta.size

    def windows(self, start: int, stop: int) -> Iterator[Window]:
        yield Window(start, stop, self.theta[start:stop], self.local[start:stop])


class Contribution:
    """The bytes of a contribution: a payload of `codec` that represents `numel` elements.

    Any thread may call any method. The bound on influence applies to the values of the payload:
    report ready only if `peak` is at most `influence_max`.
    """

    def __init__(self, payload: bytes | bytearray | memoryview, numel: int, codec: Codec) -> None:
        """Do not change `payload` afterwards.

        Raises:
            LocalProtocolError: `payload` does not have the length of `numel` elements.
            BadScale: it is not a payload that a codec writes.
        """
        if len(payload) != codec.encoded_bytes(numel):
            raise LocalProtocolError(
                f"a contribution of {numel} elements has {codec.encoded_bytes(numel)} bytes, not "
                f"{len(payload)}"
            )
        self.payload = memoryview(payload).toreadonly()
        self.numel = numel
        self.codec = codec
        self.peak = codec.peak(payload, numel)
        """The largest magnitude, according to the codec's scales."""
        self._length = max(codec.block, WINDOW // codec.block * codec.block)
        self._scratch = threading.local()

    @property
    def digest(self) -> Digest:
        """The blake3 digest of the bytes, which names this contribution."""
        return Digest(blake3(self.payload).hexdigest())

    def windows(self, start: int, stop: int) -> Iterator[Window]:
        for low in range(start, stop, self._length):
            high = min(low + self._length, stop)
            vector = self._memory()[: high - low]
            first, end = self.codec.encoded_bytes(low), self.codec.encoded_bytes(high)
            self.codec.dequantise(self.payload[first:end], vector)
            yield Window(low, high, vector, _ZEROS[: high - low])

    def _memory(self) -> Floats:
        """Return the scratch memory of the calling thread."""
        if not hasattr(self._scratch, "vector"):
            self._scratch.vector = np.empty(self._length, np.float32)
        vector: Floats = self._scratch.vector
        return vector


def quantised_once(
    theta: Floats,
    local: Floats,
    codec: Codec,
    *,
    residual: Floats | None = None,
    residual_out: Floats | None = None,
) -> Contribution:
    """Quantise θ − local once, in one pass, and return the contribution.

    With error feedback, `residual` holds what earlier roundings of this peer lost; it is added to
    the difference. `residual_out` receives what is lost now. Both have the unit of θ. When this
    contribution has become part of an update, the new residual is `residual_out`, plus the
    `residual_out` of the reduce divided by `ReduceRequest.scaled_weight`: what this peer lost when
    it rounded sums. No loss is left out if the peer's share of the total weight stays the same.

    Raises:
        NonFinite: the difference is not finite, or too large for the codec.
    """
    payload = bytearray(codec.encoded_bytes(theta.size))
    codec.quantise_difference(
        theta, local, 1.0, payload, residual=residual, residual_out=residual_out
    )
    return Contribution(payload, theta.size, codec)
