"""What a peer does to a segment, and whose fault it is when that cannot be done.

It reads θ, the local weights and the residual, and never writes them. What rounding loses now goes
to a vector of its own: each peer rounds each element once. All that travels lies in `payload`, each
segment in its own place: first the sum on its way, later the mean. A mean can come only after the
sum that it is made of has gone, so one place is enough; only where several sums are added to one
segment does an `Accumulator` hold them, in fp32, so that they are rounded once and not each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.kernels import BadScale, NonFinite
from p2ptrain.names import label
from p2ptrain.ring.blame import Blame, Blamed
from p2ptrain.ring.influence import Influence
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.request import ReduceRequest

Floats = NDArray[np.float32]
Own = tuple[Floats, Floats | None, float]
"""What a sum is added to: a vector, what is subtracted from it, and a weight."""


class Arithmetic:
    """The kernels, applied to one peer's vectors for one request. Shared by its threads."""

    def __init__(
        self,
        request: ReduceRequest,
        theta: Floats,
        local: Floats,
        out: bytearray | memoryview | NDArray[np.uint8],
        residual: Floats | None = None,
        residual_out: Floats | None = None,
    ) -> None:
        whole: memoryview = memoryview(out)  # type: ignore[arg-type]  # arrays are buffers
        self.payload = whole.cast("B")
        expected = request.codec.encoded_bytes(request.numel)
        if self.payload.readonly or len(self.payload) != expected:
            raise LocalProtocolError(f"out must be {expected} writable bytes")
        for vector in (theta, local, residual, residual_out):
            if vector is not None and vector.shape != (request.numel,):
                raise LocalProtocolError(f"vectors must have {request.numel} elements")
        self._theta = theta
        self._local = local
        self.codec = request.codec
        self._residual = residual
        self._residual_out = residual_out
        # Weights around 1 keep sums near the size of what is summed: fp16 has a narrow range.
        self._divisor = float(len(request.peers))
        self._weight = self._divisor * request.weights[request.me] / sum(request.weights)
        self._me = request.peers[request.me]
        self.influence = Influence(request, feedback=residual_out is not None)

    def alone(self) -> None:
        """The whole reduce of a single peer: the mean is the own pseudo-gradient."""
        made = self._quantise_own(0, self._theta.size, self.payload)
        self._hold_own(made, self.influence.mean_max)

    def place(self, segment: Segment) -> memoryview:
        """Where `segment` is received, added to, sent from, and in the end stays."""
        return self.payload[segment.offset : segment.offset + segment.bytes]

    def contribute(self, segment: Segment) -> None:
        """A segment sets out: quantise the own contribution, which is within its bound."""
        made = self._quantise_own(segment.start, segment.stop, self.place(segment))
        self._hold_own(made, self.influence.own_max)

    def add(self, segment: Segment, sender: PeerId, *, last: bool) -> None:
        """Add the own contribution to the sum that has arrived; if it is the `last`, divide.

        What is made lies where the sum did, of which only its scales are known by then. By these it
        was within its bound; so if our own part is too, and what was made of both is not, then its
        codes stood for more than they could, if a codec had written them.
        """
        run, place = slice(segment.start, segment.stop), self.place(segment)
        own = (self._theta[run], self._local[run], self._weight)
        kept = _run_of(self._residual, run)
        read, made = self._requantised(segment, place, (sender,), own, kept, last=last)
        _hold(sender, read, self.influence.sum_max(segment.part, sender))
        limit = self._limit(segment, last=last)
        if made > limit:
            self.contribute(segment)  # raises if it is ours that is too large
            what = f"it is {made:.3g} large with our own part, where {limit:.3g} is agreed"
            raise Blamed(_their_fault(sender, what))

    def begin(self, segment: Segment, sum: memoryview, sender: PeerId, total: Floats) -> None:
        """The first of several sums for a segment has arrived: `total` is it and the own
        contribution.
        """
        run = slice(segment.start, segment.stop)
        own = (self._theta[run], self._local[run], self._weight)
        kept = _run_of(self._residual, run)
        self._add(segment, sum, sender, own, total, kept)

    def go_on(self, segment: Segment, sum: memoryview, sender: PeerId, total: Floats) -> None:
        """Another has arrived, which is not the last: it is added to `total`."""
        self._add(segment, sum, sender, (total, None, 1.0), total, None)

    def finish(
        self,
        segment: Segment,
        sum: memoryview,
        senders: tuple[PeerId, ...],
        total: Floats,
        *,
        last: bool,
    ) -> None:
        """The last of them has: add it too, and quantise to the segment's place.

        All that came was within its bound, so what is made of it is too, or we are at fault.
        """
        own = (total, None, 1.0)
        read, made = self._requantised(segment, sum, senders, own, None, last=last)
        self._hold_sum(segment, sum, senders[-1], read)
        self._hold_own(made, self._limit(segment, last=last))

    def accept(self, segment: Segment, sender: PeerId) -> None:
        """A mean has arrived: is it one that a codec wrote, of contributions as agreed?"""
        self._examine(segment, self.place(segment), sender, self.influence.mean_max)

    def _add(
        self,
        segment: Segment,
        sum: memoryview,
        sender: PeerId,
        own: Own,
        total: Floats,
        residual: Floats | None,
    ) -> None:
        try:
            read = self.codec.add_difference(sum, *own, total, residual=residual)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        self._hold_sum(segment, sum, sender, read)

    def _requantised(
        self,
        segment: Segment,
        sum: memoryview,
        senders: tuple[PeerId, ...],
        own: Own,
        residual: Floats | None,
        *,
        last: bool,
    ) -> tuple[float, float]:
        """`sum` has come from the last of `senders`; the others' are in `own`. Returns the peaks of
        `sum` and of what was made of it.
        """
        run, divisor = slice(segment.start, segment.stop), self._divisor if last else 1.0
        kept = _run_of(self._residual_out, run)
        try:
            return self.codec.add_difference_requantise(
                sum, *own, divisor, self.place(segment), residual=residual, residual_out=kept
            )
        except BadScale as exc:
            raise Blamed(_their_fault(senders[-1], exc.what)) from exc
        except NonFinite as exc:
            self.contribute(segment)  # raises if it is our own that is too large, or not finite
            if len(senders) > 1:  # Of one alone the kernel may have begun to write over what came.
                limit = self.influence.sum_max(segment.part, senders[-1])
                self._examine(segment, sum, senders[-1], limit)
            names = " and ".join(map(label, senders))
            raise Blamed(Blame(senders, f"the sums of {names} are out of range")) from exc

    def _examine(self, segment: Segment, payload: memoryview, sender: PeerId, limit: float) -> None:
        """Hold to `limit` what was not read yet."""
        try:
            peak = self.codec.peak(payload, segment.stop - segment.start)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        _hold(sender, self._closely(segment, payload, peak, limit), limit)

    def _hold_sum(self, segment: Segment, sum: memoryview, sender: PeerId, peak: float) -> None:
        limit = self.influence.sum_max(segment.part, sender)
        _hold(sender, self._closely(segment, sum, peak, limit), limit)

    def _closely(self, segment: Segment, payload: memoryview, peak: float, limit: float) -> float:
        """Its `peak`, as its scales tell; or as its elements do, where codes that no codec writes
        could pass the limit unseen. Whoever trains stays far below, so this costs nothing.
        """
        if not peak <= limit < peak * self.codec.reach:
            return peak
        values = np.empty(segment.stop - segment.start, np.float32)
        self.codec.dequantise(payload, values)
        return float(np.abs(values).max())

    def _limit(self, segment: Segment, *, last: bool) -> float:
        """What is made here is within it before it leaves."""
        influence = self.influence
        return influence.mean_max if last else influence.sum_max(segment.part, self._me)

    def _hold_own(self, peak: float, limit: float) -> None:
        if peak > limit:
            what = f"the pseudo-gradient of {label(self._me)} is too large for this run"
            raise Blamed(Blame((self._me,), f"{what}: {peak:.3g}, not {limit:.3g}", own=True))

    def _quantise_own(self, start: int, stop: int, out: memoryview) -> float:
        run = slice(start, stop)
        try:
            return self.codec.quantise_difference(
                self._theta[run],
                self._local[run],
                self._weight,
                out,
                residual=_run_of(self._residual, run),
                residual_out=_run_of(self._residual_out, run),
            )
        except NonFinite as exc:
            raise Blamed(self._own_fault(start, exc)) from exc

    def _own_fault(self, start: int, exc: NonFinite) -> Blame:
        at = start + exc.block * self.codec.block
        what = f"the pseudo-gradient of {label(self._me)} is not finite near element {at}"
        return Blame((self._me,), what, own=True)


class Accumulator:
    """Adds the sums of several neighbours to one segment after another. For one thread."""

    def __init__(self, arithmetic: Arithmetic, segments: Sequence[Segment]) -> None:
        """For `segments` in this order."""
        self._arithmetic = arithmetic
        longest = max((segment.stop - segment.start for segment in segments), default=0)
        self._total = np.empty(longest, np.float32)
        bytes_max = max((segment.bytes for segment in segments), default=0)
        self._arriving = memoryview(bytearray(bytes_max))
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        """The one that is being added up, or will be next; None when there are no more."""
        self.added = 0
        """How many sums of it."""

    def due(self, segment: Segment) -> bool:
        """Whether sums for `segment` may come now."""
        return self._segment == segment

    def place(self, segment: Segment) -> memoryview:
        """Where the next sum for `segment` is received."""
        return self._arriving[: segment.bytes]

    def add(self, segment: Segment, sender: PeerId) -> None:
        """Add the sum that has arrived; to the own contribution, if it is the first."""
        assert self._segment == segment
        step = self._arithmetic.go_on if self.added else self._arithmetic.begin
        step(segment, self.place(segment), sender, self._total_of(segment))
        self.added += 1

    def finish(self, segment: Segment, senders: tuple[PeerId, ...], *, last: bool) -> None:
        """The last sum has arrived: quantise to the segment's place, and turn to the next."""
        assert self._segment == segment
        assert self.added == len(senders) - 1
        self._segment, self.added = next(self._segments, None), 0
        arrived, total = self.place(segment), self._total_of(segment)
        self._arithmetic.finish(segment, arrived, senders, total, last=last)

    def _total_of(self, segment: Segment) -> Floats:
        return self._total[: segment.stop - segment.start]


def _run_of(vector: Floats | None, run: slice) -> Floats | None:
    return None if vector is None else vector[run]


def _hold(sender: PeerId, peak: float, limit: float) -> None:
    """What has arrived is within what those whose contributions it holds may add."""
    if peak > limit:
        what = f"it is {peak:.3g} large, where {limit:.3g} is agreed"
        raise Blamed(_their_fault(sender, what))


def _their_fault(sender: PeerId, what: str) -> Blame:
    return Blame((sender,), f"{label(sender)} sent a bad segment: {what}")
