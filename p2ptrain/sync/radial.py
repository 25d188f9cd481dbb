"""`rda` for a ring, which can only average vectors; see `merging` for the maths.

Two numbers must have the same bits on all peers: the mean of the contributions' lengths, and the
length of their mean direction. The lengths travel with the directions. A contribution is the
fragment's vector, whose tensors have each been scaled to one length, followed by a block of the
codec for each tensor, filled with the tensor's original length. So the ring averages lengths with
the same weights and arithmetic as everything else. A block's scale holds its one number almost
exactly. The update contains everything that a newcomer needs, and no peer makes any claim besides
it. The length of the mean direction is computed by every peer from the update's bytes, with sums
whose order `norm_of` fixes.

    contribution   [ v ÷ rms(v) · most ÷ 32, of each tensor ]  0…0  [ rms(v₁) … ]  [ rms(v₂) … ]
    merged         d · (the mean rms) ÷ rms(d), of each tensor of the mean

Lengths are root mean squares, because those of all tensors have similar sizes. `most` is the bound
on a participant's influence. A ring holds every element of a mean to it, as with plain means. A
direction that is scaled to a 32nd of the bound has room for elements 32 times the usual, which is
more than AdamW makes. The merged result of a mean within the bound can still exceed it by far: by a
false length, or by a direction with a single large element. So `merged` holds each element to the
bound once more, and a negative length counts as none. Embeddings are averaged plainly, in their
place.

Limits: all lengths lie in the tail, usually in one part. So the owner of that part decides how far
all tensors go, up to the bound; of a plain mean it decides an N-th. A peer that lies about its own
direction can move single elements up to the bound, not only by its share of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2ptrain.sync.fragments import EMBEDDING, Fragment, Laid
from p2ptrain.sync.merging import LANES, norm_of

Floats = NDArray[np.float32]
Span = tuple[int, int]

HEADROOM = 32.0
"""Largest ratio of an element to its tensor's root mean square. After 20 steps of AdamW, a small
model had no element with a ratio of 6. A tensor with a larger ratio is contributed shorter than it
is.
"""

CANCELLED = 1e-9
"""A mean direction shorter than the contributions by this factor has no direction."""


@dataclass(frozen=True, slots=True)
class Radial:
    """One fragment as it is averaged. It has `numel` elements; `spans` are the tensors in it that
    are scaled to one length. Their lengths follow from the next multiple of `block` on.
    """

    numel: int
    spans: tuple[Span, ...]
    block: int

    @classmethod
    def of(cls, layout: Laid, fragment: Fragment, block: int) -> Radial:
        """Return the description of a fragment. `block` is the codec's. The zero padding after a
        tensor belongs to the tensor.
        """
        ends = [*(entry.offset for entry in layout.entries), layout.numel][1:]
        places = list(zip(layout.entries, ends, strict=True))
        spans, before = [], 0
        for start, stop in fragment.ranges:
            spans += [
                (before + entry.offset - start, before + end - start)
                for entry, end in places
                if start <= entry.offset < stop and not entry.name.startswith(EMBEDDING)
            ]
            before += stop - start
        return cls(fragment.numel, tuple(spans), block)

    @property
    def contributed(self) -> int:
        """The number of elements of a contribution, and of an update."""
        return self._tail + self.block * len(self.spans)

    @property
    def _tail(self) -> int:
        return -(-self.numel // self.block) * self.block

    def contribution(self, own: Floats, most: float) -> Floats:
        """Return what a peer contributes.
        `own` is its pseudo-gradient, and no element of it is larger than `most`.
        """
        out = np.zeros(self.contributed, np.float32)
        out[: self.numel] = own
        for number, (start, stop) in enumerate(self.spans):
            tensor = out[start:stop]
            length = _rms(tensor)
            if length > 0:
                peak = max(float(tensor.max()), -float(tensor.min()))
                scale = min(most / HEADROOM / length, most / peak)
                # In double precision: denormals may need a scale that fp32 cannot
                # represent.
                np.multiply(tensor, scale, out=tensor, dtype=np.float64, casting="same_kind")
            out[self._block_of(number)] = length
        return out

    def merged(self, mean: Floats, largest: float) -> Floats:
        """Return the merged pseudo-gradient from the mean of contributions: the same bits
        everywhere.

        No element of a lengthened tensor is larger than `largest`, for any `mean`. If directions
        cancel each other, there is nothing to lengthen, and the result is zero. It is also zero if
        the length is negative, which a mean of lengths never is.
        """
        out = mean[: self.numel].copy()
        for number, (start, stop) in enumerate(self.spans):
            length = max(0.0, float(mean[self._block_of(number)][0]))
            found = _rms(mean[start:stop])
            scale = length / found if found > CANCELLED * length else 0.0
            for first in range(start, stop, LANES):
                run = slice(first, min(first + LANES, stop))
                exact = mean[run].astype(np.float64) * scale
                out[run] = np.clip(exact, -largest, largest)
        return out

    def _block_of(self, number: int) -> slice:
        start = self._tail + number * self.block
        return slice(start, start + self.block)


def _rms(tensor: Floats) -> float:
    return norm_of(tensor) / math.sqrt(tensor.size)
