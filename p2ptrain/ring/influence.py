"""How far one participant may move the mean, and who is at fault where more was tried.

All know how much the weights of a participant may differ from θ, element by element: the request's
`influence_max`. The largest magnitude of a sum is at most the sum of those of its terms, so what
arrives for a part may be no larger than what the peers whose contributions are in it may add, by
their weights, and what their rounding adds. A receiver reads that off the scales, and next to the
bound, where a liar's codes may go past it, off every element. Who passes on a sum has held it to
the bound of those before, and has added no more than it may, so a sum over its bound is the fault
of its sender: it made it, or accepted what it should have refused.

What this cannot do. Who passes a sum on may put another in its place, as large as that of all in it
may be: in a ring the last to add, and everywhere the owner of a part, decide about that part's mean
up to the bound on a mean, which is that on one participant. Within the bound nobody sees whose
numbers are wrong: a mean of lies that are small enough is a mean. The owner of a part may even send
two means to two peers: their results differ, and the ledger commits one of them. And an accusation
is its bearer's word: others hear from one of the two that the other is at fault, and cannot tell
which of them is.

It knows the plan's trees and the request, and reads no vector but for `own_peak`.
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
"""So much each may add whatever its weight: fp16 rounds up by half of it."""
_FP32_ROUNDING = 1 + 2.0**-20
"""What each hop's few operations in fp32 lose is far less."""
_RUN = 1 << 16
"""Elements looked at together: they stay in the cache from one numpy call to the next."""


class Influence:
    """The bounds of one request, in units of the sums and means on the wire.

    `feedback`: contributions also hold what rounding lost before, at most a share of the largest
    sum that there may have been, by the codec.
    """

    def __init__(self, request: ReduceRequest, *, feedback: bool) -> None:
        self._request = request
        codec, peers, most = request.codec, len(request.peers), request.influence_max
        self._numbers = {peer: number for number, peer in enumerate(request.peers)}
        self._growth = codec.growth * _FP32_ROUNDING
        self._per_weight = most * peers / sum(request.weights)
        self._per_peer = _LEAST + (owed_max(codec, peers, most) if feedback else 0.0)
        self._sums: dict[tuple[int, PeerId], float] = {}
        self.bounded = most < UNBOUNDED
        self.own_max = self._at_first((request.me,)) * self._growth if self.bounded else math.inf
        """The largest magnitude that what we add to a sum may have by itself, quantised."""
        self.mean_max = mean_max(codec, request.schedule, peers, most, feedback=feedback)

    def sum_max(self, part: int, sender: PeerId) -> float:
        """The largest magnitude that a sum of `part` may have when `sender` sends it."""
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
        """What these peers' contributions may add up to before they are rounded."""
        weight = sum(self._request.weights[number] for number in terms)
        return self._per_weight * weight + self._per_peer * len(terms)


def mean_max(
    codec: Codec, schedule: Schedule, peers: int, influence_max: float, *, feedback: bool
) -> float:
    """The largest magnitude that the mean of so many peers may have, in every part.

    The same to the last bit on every machine, since peers decide by it: it is made by additions and
    multiplications in one order, which IEEE 754 rounds alike everywhere. A power would not be.
    """
    if influence_max >= UNBOUNDED:
        return math.inf
    roundings = route(schedule, peers, owner_of(schedule, peers, 0), 0).sum_hop + 1
    owed = owed_max(codec, peers, influence_max) if feedback else 0.0
    terms = influence_max + owed + _LEAST
    bound = terms
    for _ in range(roundings):
        bound *= codec.growth * _FP32_ROUNDING
    return bound


def owed_max(codec: Codec, peers: int, influence_max: float) -> float:
    """The largest magnitude that a participant may add, beside its work, of what rounding lost."""
    return codec.loss * influence_max * peers


def own_peak(theta: Floats, local: Floats) -> float:
    """The largest magnitude of θ − local; NaN or infinite if that is not finite. A pass over both.

    Every participant holds its own to `influence_max` before it says that it is ready.
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
