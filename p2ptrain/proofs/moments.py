"""The state of an inner optimizer in 2 bytes a parameter, with the same bytes on all machines.

AdamW divides the mean of the gradients by the root of the mean of their squares. So what matters is
the ratio of the two, and the root's size. For each element of AdamW:

    byte 0   the root, as a float with 3 bits after the leading one. Each octave has 8 codes. The
             code 255 is the last one below the first power of two above `root_max`. The code 0
             stands for 0 and for all roots that are 2^31.75 times as small or smaller
    byte 1   the ratio of mean and root, as a signed integer of 1/127 of `ratio_max`

With a limit of 1 on the gradient's length, the smallest root is 5e-10, far below AdamW's ε of
1e-8. Elements of Muon have only a momentum. It is stored as bf16, little-endian.

Each operation is one that IEEE 754 defines to the last bit (√, ×, ÷, rounding), or works on the
bits of a float. There is no scale, so a part of the encoded vector is the encoding of that part.
Encoding what was decoded gives the same bytes again, so a chain that continues from decoded moments
has equal digests. No node encodes moments yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

_DOMAIN = b"p2ptrain moments 1\n"
_SHIFT = 20
"""Bits of a float that a code of a root leaves out, of the 23 after the leading one."""
_COUNT_MAX = 1 << 53


@dataclass(frozen=True, slots=True)
class MomentsFormat:
    """The numbers that all peers of a run agree on. `ratio_max` is the largest |mean| ÷ root that
    AdamW can reach with the run's betas, and `root_max` the length to which gradients are clipped.
    `muon` are the runs of elements that Muon trains, in order.

    Raises ValueError: a number is out of range. A run that does not clip gradients has no bound on
    roots, so it cannot have this proof.
    """

    ratio_max: float
    root_max: float
    muon: tuple[slice, ...] = ()

    def __post_init__(self) -> None:
        for each in (self.ratio_max, self.root_max):
            if not 2.0**-60 <= each <= 2.0**60:
                raise ValueError(f"moments cannot be encoded with a bound of {each}")

    @property
    def _top(self) -> int:
        """The code, before the offset, of the first root that is too large."""
        return ((math.frexp(self.root_max)[1] + 126) << 3) + 8

    def encode(self, mean: Floats, square: Floats) -> Codes:
        """Return the codes [elements, 2] of both moments. For elements of Muon, `mean` is the
        momentum and `square` is not used. Values beyond the bounds are encoded as the bounds."""
        codes = np.empty((mean.size, 2), np.uint8)
        root = np.sqrt(square)
        codes[:, 0] = self._root_codes(root)
        kept = self._roots(codes[:, 0])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(kept > 0, mean / kept, np.float32(0)) * self._per_ratio
        codes[:, 1] = np.rint(ratio).clip(-127, 127).astype(np.int8).view(np.uint8)
        for run in self.muon:
            codes[run] = _to_bf16(mean[run])
        return codes

    def decode(self, codes: Codes) -> tuple[Floats, Floats]:
        """Return mean and mean of squares, or momentum and zeros for elements of Muon."""
        root = self._roots(codes[:, 0])
        ratio = np.ascontiguousarray(codes[:, 1]).view(np.int8).astype(np.float32)
        mean, square = ratio * self._ratio_unit * root, root * root
        for run in self.muon:
            mean[run], square[run] = _from_bf16(codes[run]), 0
        return mean, square

    def read(self, data: bytes, numel: int) -> Codes:
        """Return the codes [numel, 2] in bytes from a peer. All of them stand for finite numbers.

        Raises RemoteProtocolError: the length is wrong, or a momentum is not finite.
        """
        if len(data) != 2 * numel:
            raise RemoteProtocolError(f"moments have {len(data)} bytes instead of {2 * numel}")
        codes = np.frombuffer(data, np.uint8).reshape(numel, 2)
        if not all(np.isfinite(_from_bf16(codes[run])).all() for run in self.muon):
            raise RemoteProtocolError("moments contain a number that is not finite")
        return codes

    @property
    def _ratio_unit(self) -> np.float32:
        return np.float32(self.ratio_max / 127)

    @property
    def _per_ratio(self) -> np.float32:
        return np.float32(1) / self._ratio_unit

    def _root_codes(self, root: Floats) -> NDArray[np.int32]:
        bits = np.ascontiguousarray(root, np.float32).view(np.uint32).astype(np.int64)
        half = (1 << (_SHIFT - 1)) - 1
        rounded = (bits + half + (bits >> _SHIFT & 1)) >> _SHIFT
        return np.asarray((rounded - self._top + 256).clip(0, 255), np.int32)

    def _roots(self, codes: Codes) -> Floats:
        shifted = (codes.astype(np.int64) + self._top - 256) << _SHIFT
        return np.where(codes == 0, 0, shifted).astype(np.uint32).view(np.float32)


def moments_digest(codes: Codes, count: int) -> Digest:
    """Return the digest of encoded moments. `count` is AdamW's count of inner steps, on which its
    next step depends too."""
    assert 0 <= count <= _COUNT_MAX
    head = _DOMAIN + count.to_bytes(8, "big")
    return Digest(blake3(head + np.ascontiguousarray(codes).tobytes()).hexdigest())


def mean_of_donors(moments_format: MomentsFormat, donors: Sequence[Codes]) -> Codes:
    """Return the encoded mean of several members' moments, in the order given, with which a joining
    peer may start. Anybody who has the donors' encoded moments can recompute it."""
    mean, square = (np.zeros(len(donors[0]), np.float32) for _ in range(2))
    for each in donors:
        for total, part in zip((mean, square), moments_format.decode(each), strict=True):
            total += part
    count = np.float32(len(donors))
    return moments_format.encode(mean / count, square / count)


def _to_bf16(values: Floats) -> Codes:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return rounded.astype("<u2").view(np.uint8).reshape(-1, 2)


def _from_bf16(codes: Codes) -> Floats:
    halves = np.ascontiguousarray(codes).view("<u2")[:, 0]
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
