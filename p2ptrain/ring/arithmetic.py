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
        self._quantise_own(0, self._theta.size, self.payload)
        self._hold_own(self.payload, self._theta.size, self.influence.mean_max)

    def place(self, segment: Segment) -> memoryview:
        """Where `segment` is received, added to, sent from, and in the end stays."""
        return self.payload[segment.offset : segment.offset + segment.bytes]

    def contribute(self, segment: Segment) -> None:
        """A segment sets out: quantise the own contribution."""
        self._quantise_own(segment.start, segment.stop, self.place(segment))
        self.settled(segment, last=False)

    def add(self, segment: Segment, sender: PeerId, *, last: bool) -> None:
        """Add the own contribution to the sum that has arrived; if it is the `last`, divide."""
        run, place = slice(segment.start, segment.stop), self.place(segment)
        self.hold(segment, place, sender)
        try:
            self.codec.add_difference_requantise(
                place,
                self._theta[run],
                self._local[run],
                self._weight,
                self._divisor if last else 1.0,
                place,
                residual=_run_of(self._residual, run),
                residual_out=_run_of(self._residual_out, run),
            )
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        except NonFinite as exc:
            self.contribute(segment)  # raises if it is our own that is not finite
            raise Blamed(_their_fault(sender, "its sums are out of range")) from exc
        self.settled(segment, last=last)

    def hold(self, segment: Segment, place: memoryview, sender: PeerId) -> None:
        """A sum has arrived: is it within what those whose contributions it holds may add?"""
        if self.influence.bounded:
            self._judge(segment, place, sender, self.influence.sum_max(segment.part, sender))

    def settled(self, segment: Segment, *, last: bool) -> None:
        """What was made here is within its bound before it leaves, or we are at fault: what came
        was within its own.
        """
        influence = self.influence
        limit = influence.mean_max if last else influence.sum_max(segment.part, self._me)
        self._hold_own(self.place(segment), segment.stop - segment.start, limit)

    def accept(self, segment: Segment, sender: PeerId) -> None:
        """A mean has arrived: is it one that a codec wrote, of contributions as agreed?"""
        self._judge(segment, self.place(segment), sender, self.influence.mean_max)

    def _judge(self, segment: Segment, place: memoryview, sender: PeerId, limit: float) -> None:
        try:
            peak = self.codec.peak(place, segment.stop - segment.start)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        if peak > limit:
            what = f"it is {peak:.3g} large, where {limit:.3g} is agreed"
            raise Blamed(_their_fault(sender, what))

    def own(self, segment: Segment, out: Floats) -> None:
        """The own contribution, not quantised."""
        run = slice(segment.start, segment.stop)
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(self._theta[run], self._local[run], out=out)
            np.multiply(out, np.float32(self._weight), out=out)
            if self._residual is not None:
                np.add(out, self._residual[run], out=out)

    def settle(self, segment: Segment, total: Floats, scratch: Floats, *, last: bool) -> None:
        """Quantise a sum, or if it is the `last` the mean, to its place.

        Raises NonFinite.
        """
        divisor, place = np.float32(self._divisor if last else 1.0), self.place(segment)
        np.divide(total, divisor, out=scratch)
        self.codec.quantise(scratch, place)
        if self._residual_out is not None:
            self.codec.dequantise(place, scratch)
            np.multiply(scratch, divisor, out=scratch)
            run = slice(segment.start, segment.stop)
            np.subtract(total, scratch, out=self._residual_out[run])

    def _hold_own(self, place: memoryview, count: int, limit: float) -> None:
        if not self.influence.bounded:
            return
        peak = self.codec.peak(place, count)
        if peak > limit:
            what = f"the pseudo-gradient of {label(self._me)} is too large for this run"
            raise Blamed(Blame((self._me,), f"{what}: {peak:.3g}, not {limit:.3g}", own=True))

    def _quantise_own(self, start: int, stop: int, out: memoryview) -> None:
        run = slice(start, stop)
        try:
            self.codec.quantise_difference(
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

    def __init__(
        self, arithmetic: Arithmetic, term: Floats, bytes: int, segments: Sequence[Segment]
    ) -> None:
        """For `segments` in this order, which fit in `term`, scratch that accumulators of one
        thread share.
        """
        self._arithmetic = arithmetic
        self._total = np.empty_like(term)
        self._term = term
        self._arriving = memoryview(bytearray(bytes))
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
        count = segment.stop - segment.start
        total, term = self._total[:count], self._term[:count]
        assert self._segment == segment
        self._arithmetic.hold(segment, self.place(segment), sender)
        if self.added == 0:
            self._arithmetic.own(segment, total)
        try:
            self._arithmetic.codec.dequantise(self.place(segment), term)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        with np.errstate(invalid="ignore", over="ignore"):
            np.add(total, term, out=total)
        self.added += 1

    def finish(self, segment: Segment, senders: tuple[PeerId, ...], *, last: bool) -> None:
        """The last sum has been added: quantise to the segment's place, and turn to the next."""
        assert self._segment == segment
        assert self.added == len(senders)
        self._segment, self.added = next(self._segments, None), 0
        count = segment.stop - segment.start
        total, term = self._total[:count], self._term[:count]
        try:
            self._arithmetic.settle(segment, total, term, last=last)
        except NonFinite as exc:
            self._arithmetic.contribute(segment)  # raises if it is our own that is not finite
            raise Blamed(Blame(senders, "their sums are out of range")) from exc
        self._arithmetic.settled(segment, last=last)


def _run_of(vector: Floats | None, run: slice) -> Floats | None:
    return None if vector is None else vector[run]


def _their_fault(sender: PeerId, what: str) -> Blame:
    return Blame((sender,), f"{label(sender)} sent a bad segment: {what}")
