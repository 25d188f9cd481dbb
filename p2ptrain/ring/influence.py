"""Limits on how far one participant may move the mean, and blame for a sum that is too large.

All peers know `influence_max` from the request: how much a participant's weights may differ from θ,
element by element. The largest magnitude of a sum is at most the sum of the magnitudes of its
terms. So a sum that arrives for a part may be at most as large as the contributions in it may be,
by their weights, plus what rounding adds. The receiver reads its magnitude from the scales. Near
the bound it reads every element, because forged codes could exceed the scales. A peer that passes a
sum on has checked the sums that it received, and has added no more than it may. So a sum over its
bound is the fault of its sender, which either made it or accepted a sum that it should have
refused.

Limits. A peer that passes a sum on may replace it by another that is as large as its contributions
may be. So the last peer to add in a ring, and the owner of a part in every schedule, decide that
part's mean, up to the bound on a mean, which equals the bound on one participant. Within the bound
nobody sees whose numbers are wrong. The owner of a part may even send different means to two peers:
then their results differ, and the ledger commits one of them. An accusation is only the word of the
accuser: other peers cannot tell whether the accuser or the accused is at fault.

It knows the plan's trees and the request. Only `contribution_peak` reads vectors.
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
"""The least that each peer may add, for any weight: fp16 rounds up by half of this."""
_FP32_ROUNDING = 1 + 2.0**-20
"""Allowance for the few fp32 operations of each hop, which lose far less."""
_RUN = 1 << 16
"""Elements processed together, so that they stay in the cache from one numpy call to the next."""


class Influence:
    """The bounds of one request, in units of the sums and means on the wire.

    With `feedback`, contributions also hold earlier rounding errors. These are at most a share of
    the largest possible sum; the share depends on the codec.
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
        """The largest magnitude of the own contribution, after quantisation."""
        self.mean_max = mean_max(codec, request.schedule, peers, most, feedback=feedback)

    def sum_max(self, part: int, sender: PeerId) -> float:
        """Return the largest magnitude that a sum of `part` may have when `sender` sends it."""
        if not self.bounded:
            return math.inf
        known = self._sums.get((part, sender))
        if known is None:
            known = self._sums[part, sender] = self._sum_max(part, self._numbers[sender])
        return known

    def _sum_max(self, part: int, sender: int) -> float:
        request = self._request
        schedule, peers = request.schedule, len(request.peers)
        terms = contributors(schedule, peers, part, sender)
        roundings = route(schedule, peers, sender, part).sum_hop + 1
        return self._at_first(terms) * self._growth**roundings

    def _at_first(self, terms: Sequence[int]) -> float:
        """Return the bound on the sum of these peers' contributions before any rounding."""
        weight = sum(self._request.weights[number] for number in terms)
        return self._per_weight * weight + self._per_peer * len(terms)


def mean_max(
    codec: Codec, schedule: Schedule, peers: int, influence_max: float, *, feedback: bool
) -> float:
    """Return the largest magnitude that the mean of so many peers may have, in every part.

    Peers decide by this number, so it must be the same to the last bit on every machine. It is made
    of additions and multiplications in a fixed order, which IEEE 754 rounds alike everywhere. A
    power function does not have that property.
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
    """Return the bound on the earlier rounding errors that a participant may add to its work."""
    return codec.loss * influence_max * peers


def contribution_peak(theta: Floats, local: Floats) -> float:
    """Return the largest magnitude of θ − local; NaN or infinity if it is not finite. One pass over
    both.

    Every participant holds its own contribution to `influence_max` before it reports ready.
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
