"""The arithmetic that a peer applies to a segment, and the blame when it fails.

It reads θ, the local weights and the residual, and never writes them. The new rounding errors go to
a separate vector, since each peer rounds each element once. All bytes on the wire lie in `payload`:
each segment has one place, first for the sum and later for the mean. One place is enough because a
mean arrives only after the sum that it was made from has been sent. Where several sums are added to
one segment, an `Accumulator` holds their total in fp32, so that it is rounded only once.
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
"""The terms added to a sum: a vector, the vector subtracted from it (or None), and a weight."""


class Arithmetic:
    """Applies the kernels to one peer's vectors for one request. Shared by its threads."""

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
        """Do the whole reduce of a single peer: the mean is its own pseudo-gradient."""
        made = self._quantise_own(0, self._theta.size, self.payload)
        self._hold_own(made, self.influence.mean_max)

    def place(self, segment: Segment) -> memoryview:
        """Return the place where `segment` is received, added to, sent from and finally kept."""
        return self.payload[segment.offset : segment.offset + segment.bytes]

    def contribute(self, segment: Segment) -> None:
        """Quantise the own contribution to `segment`, and check that it is within its bound."""
        made = self._quantise_own(segment.start, segment.stop, self.place(segment))
        self._hold_own(made, self.influence.own_max)

    def add(self, segment: Segment, sender: PeerId, *, last: bool) -> None:
        """Add the own contribution to the sum that has arrived; if it is the `last`, divide.

        The result overwrites the sum, so afterwards only the scales of the sum are known. They were
        within the bound. Suppose that the own contribution is within its bound but the result is
        not. Then the codes of the sum stood for larger values than a codec writes, and the sender
        is at fault.
        """
        run, place = slice(segment.start, segment.stop), self.place(segment)
        own = (self._theta[run], self._local[run], self._weight)
        kept = _run_of(self._residual, run)
        read, made = self._requantised(segment, place, (sender,), own, kept, last=last)
        _hold(sender, read, self.influence.sum_max(segment.part, sender))
        limit = self._limit(segment, last=last)
        if made > limit:
            self.contribute(segment)  # raises if our own part is too large
            what = f"its size with this node's part is {made:.3g}; the run allows {limit:.3g}"
            raise Blamed(_their_fault(sender, what))

    def begin(self, segment: Segment, sum: memoryview, sender: PeerId, total: Floats) -> None:
        """Start `total` from the first of several sums for a segment and the own contribution."""
        run = slice(segment.start, segment.stop)
        own = (self._theta[run], self._local[run], self._weight)
        kept = _run_of(self._residual, run)
        self._add(segment, sum, sender, own, total, kept)

    def go_on(self, segment: Segment, sum: memoryview, sender: PeerId, total: Floats) -> None:
        """Add another sum to `total`. It is neither the first nor the last."""
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
        """Add the last sum too, and quantise the total to the segment's place.

        Every sum was within its bound, so a total that is too large is our own fault.
        """
        own = (total, None, 1.0)
        read, made = self._requantised(segment, sum, senders, own, None, last=last)
        self._hold_sum(segment, sum, senders[-1], read)
        self._hold_own(made, self._limit(segment, last=last))

    def accept(self, segment: Segment, sender: PeerId) -> None:
        """Check that the mean that has arrived was written by a codec and is within the bound."""
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
        """Add, and requantise to the segment's place. `sum` came from the last of `senders`; `own`
        holds the others' sums. Return the peaks of `sum` and of the result.
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
            self.contribute(segment)  # raises if our own part is too large or not finite
            if len(senders) > 1:  # With one sender the kernel may have overwritten part of the sum.
                limit = self.influence.sum_max(segment.part, senders[-1])
                self._examine(segment, sum, senders[-1], limit)
            names = " and ".join(map(label, senders))
            raise Blamed(Blame(senders, f"the sums of {names} are out of range")) from exc

    def _examine(self, segment: Segment, payload: memoryview, sender: PeerId, limit: float) -> None:
        """Check that bytes that nothing has read so far are within `limit`."""
        try:
            peak = self.codec.peak(payload, segment.stop - segment.start)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        _hold(sender, self._closely(segment, payload, peak, limit), limit)

    def _hold_sum(self, segment: Segment, sum: memoryview, sender: PeerId, peak: float) -> None:
        limit = self.influence.sum_max(segment.part, sender)
        _hold(sender, self._closely(segment, sum, peak, limit), limit)

    def _closely(self, segment: Segment, payload: memoryview, peak: float, limit: float) -> float:
        """Return the largest magnitude in `payload`. The scales give it as `peak`. Near the limit,
        codes that no codec writes could exceed it unseen, so there every element is read. Honest
        peers stay far below the limit, so they pay nothing for this.
        """
        if not peak <= limit < peak * self.codec.reach:
            return peak
        values = np.empty(segment.stop - segment.start, np.float32)
        self.codec.dequantise(payload, values)
        return float(np.abs(values).max())

    def _limit(self, segment: Segment, *, last: bool) -> float:
        """Return the bound that a result made here must keep before it is sent."""
        influence = self.influence
        return influence.mean_max if last else influence.sum_max(segment.part, self._me)

    def _hold_own(self, peak: float, limit: float) -> None:
        if peak > limit:
            what = f"the weights of {label(self._me)} moved further than this run allows"
            raise Blamed(
                Blame(
                    (self._me,), f"{what}: {peak:.3g}, where {limit:.3g} is the maximum", own=True
                )
            )

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
        """`segments` are added up one after another in this order."""
        self._arithmetic = arithmetic
        longest = max((segment.stop - segment.start for segment in segments), default=0)
        self._total = np.empty(longest, np.float32)
        bytes_max = max((segment.bytes for segment in segments), default=0)
        self._arriving = memoryview(bytearray(bytes_max))
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        """The segment that is being added up, or is next; None when all are done."""
        self.added = 0
        """Number of sums added to it so far."""

    def due(self, segment: Segment) -> bool:
        """Return whether sums for `segment` may come now."""
        return self._segment == segment

    def place(self, segment: Segment) -> memoryview:
        """Return the place where the next sum for `segment` is received."""
        return self._arriving[: segment.bytes]

    def add(self, segment: Segment, sender: PeerId) -> None:
        """Add the sum that has arrived. The first is added to the own contribution."""
        assert self._segment == segment
        step = self._arithmetic.go_on if self.added else self._arithmetic.begin
        step(segment, self.place(segment), sender, self._total_of(segment))
        self.added += 1

    def finish(self, segment: Segment, senders: tuple[PeerId, ...], *, last: bool) -> None:
        """Add the last sum, quantise to the segment's place, and move on to the next segment."""
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
    """Blame `sender` if its segment exceeds what the peers whose contributions it holds may add."""
    if peak > limit:
        what = f"its size is {peak:.3g}; the run allows {limit:.3g}"
        raise Blamed(_their_fault(sender, what))


def _their_fault(sender: PeerId, what: str) -> Blame:
    return Blame((sender,), f"{label(sender)} sent an invalid segment: {what}")
