"""Limits on how far one participant may move the mean, and blame for a sum that is too large.

All peers know `influence_max` from the request: how much each element of a participant's weights
may differ from θ. The magnitude of a sum is at most the sum of the magnitudes of its terms. So the
magnitude of a received sum is bounded by the weighted bounds of the contributions in it, plus
rounding. The receiver reads the magnitude from the codec's scales. Near the bound it reads every
element, because forged codes could exceed the scales. A peer that forwards a sum must check the
sums that it received and keep its own contribution within its bound. So a sum that exceeds its
bound is the fault of its sender, which either computed it or accepted a sum that it should have
refused.

Limits: a peer that forwards a sum can replace it with any other sum within the same bound. So the
last peer that adds in a ring, and the owner of a part in every schedule, can choose that part's
mean within the bound on a mean. This bound equals the bound on one participant. Within the bound,
nobody can tell whose numbers are wrong. The owner of a part can even send different means to two
peers: then their results differ, and the ledger commits one of them. An accusation proves nothing:
other peers cannot tell whether the accuser or the accused is at fault.

This module depends only on the request and the schedules' trees. Only `contribution_peak` reads
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ids import PeerId
from p2ptrain.kernels import UNBOUNDED, Codec
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.schedules import Schedule, contributors, owner_of, route

Floats = NDArray[np.float32]

_LEAST = 2.0**-24
"""Tolerance for each peer, whatever its weight: fp16 can round up by half of this."""
_FP32_ROUNDING = 1 + 2.0**-20
"""Tolerance for the fp32 operations of each hop, whose error is far smaller."""
_RUN = 1 << 16
"""Elements processed together, so that they stay in the cache between numpy calls."""


class Influence:
    """The bounds of one request, in units of the sums and means on the wire.

    With `feedback`, contributions include earlier rounding errors (see `residual_max`).
    """

    def __init__(self, request: ReduceRequest, *, feedback: bool) -> None:
        self._request = request
        codec, peers, most = request.codec, len(request.peers), request.influence_max
        self._numbers = {peer: number for number, peer in enumerate(request.peers)}
        self._growth = codec.growth * _FP32_ROUNDING
        self._per_weight = most * peers / sum(request.weights)
        self._per_peer = _LEAST + (residual_max(codec, peers, most) if feedback else 0.0)
        self._sums: dict[tuple[int, PeerId], float] = {}
        self.bounded = most < UNBOUNDED
        self.own_max = self._at_first((request.me,)) * self._growth if self.bounded else math.inf
        """Bound on our own contribution, after quantisation."""
        self.mean_max = mean_max(codec, request.schedule, peers, most, feedback=feedback)

    def sum_max(self, part: int, sender: PeerId) -> float:
        """Return the bound on a sum of `part` that `sender` sends."""
        if not self.bounded:
            return math.inf
        if (part, sender) not in self._sums:
            schedule, peers = self._request.schedule, len(self._request.peers)
            number = self._numbers[sender]
            terms = contributors(schedule, peers, part, number)
            roundings = route(schedule, peers, number, part).sum_hop + 1
            self._sums[part, sender] = self._at_first(terms) * self._growth**roundings
        return self._sums[part, sender]

    def _at_first(self, terms: Sequence[int]) -> float:
        """Return the bound on the sum of the contributions of the peers with the numbers `terms`,
        before any rounding.
        """
        weight = sum(self._request.weights[number] for number in terms)
        return self._per_weight * weight + self._per_peer * len(terms)


def mean_max(
    codec: Codec, schedule: Schedule, peers: int, influence_max: float, *, feedback: bool
) -> float:
    """Return the largest magnitude that the mean of `peers` peers may have in any part.

    All peers must compute exactly the same number on every machine. So this function uses only
    additions and multiplications in a fixed order, which IEEE 754 defines to the last bit. IEEE 754
    does not define a power function to the last bit.
    """
    if influence_max >= UNBOUNDED:
        return math.inf
    roundings = route(schedule, peers, owner_of(schedule, peers, 0), 0).sum_hop + 1
    owed = residual_max(codec, peers, influence_max) if feedback else 0.0
    terms = influence_max + owed + _LEAST
    bound = terms
    for _ in range(roundings):
        bound *= codec.growth * _FP32_ROUNDING
    return bound


def residual_max(codec: Codec, peers: int, influence_max: float) -> float:
    """Return the largest magnitude of the earlier rounding errors that a participant may add to an
    element: the codec's `loss` times the largest possible sum.
    """
    return codec.loss * influence_max * peers


def contribution_peak(theta: Floats, local: Floats) -> float:
    """Return the largest magnitude of θ − local; NaN or infinity if it is not finite.

    Every participant checks its own contribution against `influence_max` before it reports ready.
    """
    scratch = np.empty(min(_RUN, theta.size), np.float32)
    peak = 0.0
    for start in range(0, theta.size, _RUN):
        run = slice(start, start + _RUN)
        difference = scratch[: theta[run].size]
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(theta[run], local[run], out=difference)
        top = max(float(difference.max()), -float(difference.min()))
        if not math.isfinite(top):
            return top
        peak = max(peak, top)
    return peak
