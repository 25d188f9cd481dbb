"""The arithmetic that a peer applies to a segment, and the blame when the arithmetic fails.

The arithmetic reads our own contribution (see `source`) and the residual (the rounding errors of
earlier reduces), and never writes them, so that a failed attempt can be repeated. The new rounding
errors overwrite another vector. Nothing is added up there, because a peer rounds each element once
in a reduce.

Each segment has one place in `payload`, first for the sum and later for the mean. One place is
enough because a mean arrives only after the sum that it was computed from has been sent. If a peer
adds several sums to a segment, an `Accumulator` receives them one after another in a buffer of its
own. It holds their total in fp32, so that the total is rounded only once.
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
from p2ptrain.ring.source import Contribution, Source

Floats = NDArray[np.float32]
Own = tuple[Floats, Floats | None, float]
"""A term to add to a sum: a vector, a vector to subtract from it (or None), and the weight of the
difference."""


class Arithmetic:
    """Applies the kernels to the vectors of one peer in one attempt. All threads of the reduce
    share this object.
    """

    def __init__(
        self,
        request: ReduceRequest,
        source: Source,
        out: bytearray | memoryview | NDArray[np.uint8],
        residual: Floats | None = None,
        residual_out: Floats | None = None,
    ) -> None:
        whole: memoryview = memoryview(out)  # type: ignore[arg-type]  # arrays are buffers
        self.payload = whole.cast("B")
        expected = request.codec.encoded_bytes(request.numel)
        if self.payload.readonly or len(self.payload) != expected:
            raise LocalProtocolError(f"out must be {expected} writable bytes")
        if source.numel != request.numel:
            raise LocalProtocolError(f"a contribution must have {request.numel} elements")
        for vector in (residual, residual_out):
            if vector is not None and vector.shape != (request.numel,):
                raise LocalProtocolError(f"residuals must have {request.numel} elements")
        if isinstance(source, Contribution):
            _check_contribution(source, request, residual)
        # The bound on a contribution's values already includes its residual.
        feedback = residual_out is not None and not isinstance(source, Contribution)
        self._source = source
        self.codec = request.codec
        self._residual = residual
        self._residual_out = residual_out
        self._divisor = float(len(request.peers))
        self._weight = request.scaled_weight
        self._me = request.peers[request.me]
        self.influence = Influence(request, feedback=feedback)

    def alone(self) -> None:
        """Do the whole reduce of a peer that is alone: the mean is its own pseudo-gradient."""
        made = self._quantise_own(0, self._source.numel, self.payload)
        self._hold_own(made, self.influence.mean_max)

    def place(self, segment: Segment) -> memoryview:
        """Return the part of the payload in which `segment` is computed, sent and finally
        stored.
        """
        return self.payload[segment.offset : segment.offset + segment.bytes]

    def contribute(self, segment: Segment) -> None:
        """Quantise our own contribution to `segment`, and check that it is within its bound."""
        made = self._quantise_own(segment.start, segment.stop, self.place(segment))
        self._hold_own(made, self.influence.own_max)

    def add(self, segment: Segment, sender: PeerId, *, last: bool) -> None:
        """Add our own contribution to the sum that has arrived. If ours is the `last` contribution,
        also divide by the number of peers.

        The result overwrites the sum, so afterwards only the sum's peak (the largest magnitude
        according to the codec's scales) is known, and the peak is within the bound. If our own
        contribution is also within its bound but the result is not, then the sum contained elements
        larger than its peak. A codec never writes such elements, so the sender is at fault.
        """
        read, made = self._add_own(segment, sender, last=last)
        _hold(sender, read, self.influence.sum_max(segment.part, sender))
        limit = self._limit(segment, last=last)
        if made > limit:
            self.contribute(segment)  # raises if our own contribution is too large
            what = f"with this node's contribution it is {made:.3g}; the run allows {limit:.3g}"
            raise Blamed(_their_fault(sender, what))

    def accumulate(
        self, segment: Segment, sum: memoryview, sender: PeerId, total: Floats, *, first: bool
    ) -> None:
        """Add one of several sums for a segment to `total`. If it is the `first` sum, set `total`
        to this sum plus our own contribution.
        """
        try:
            if first:
                read = self._start_total(segment, sum, total)
            else:
                read = self.codec.add_difference(sum, total, None, 1.0, total)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        self._hold_sum(segment, sum, sender, read)

    def finish(
        self,
        segment: Segment,
        sum: memoryview,
        senders: tuple[PeerId, ...],
        total: Floats,
        *,
        last: bool,
    ) -> None:
        """Add the last of several sums, and quantise the total into the segment's place.

        Every sum was within its bound, so a total that is too large is our own fault.
        """
        run, own = slice(segment.start, segment.stop), (total, None, 1.0)
        read, made = self._requantised(segment, run, sum, senders, own, None, last=last)
        self._hold_sum(segment, sum, senders[-1], read)
        self._hold_own(made, self._limit(segment, last=last))

    def accept(self, segment: Segment, sender: PeerId) -> None:
        """Check that the received mean is valid and within its bound."""
        self._examine(segment, self.place(segment), sender, self.influence.mean_max)

    def _add_own(self, segment: Segment, sender: PeerId, *, last: bool) -> tuple[float, float]:
        """Add our own contribution to the sum in the segment's place. Return the peaks of the sum
        and of the result.
        """
        read = made = 0.0
        place = self.place(segment)
        for window in self._source.windows(segment.start, segment.stop):
            run = slice(window.start, window.stop)
            own, kept = (window.vector, window.subtrahend, self._weight), self._residual
            peaks = self._requantised(
                segment, run, place, (sender,), own, _run_of(kept, run), last=last
            )
            read, made = max(read, peaks[0]), max(made, peaks[1])
        return read, made

    def _start_total(self, segment: Segment, sum: memoryview, total: Floats) -> float:
        """Set `total` to `sum` plus our own contribution. Return the peak of `sum`."""
        read = 0.0
        for window in self._source.windows(segment.start, segment.stop):
            run = slice(window.start, window.stop)
            own = (window.vector, window.subtrahend, self._weight)
            result = total[run.start - segment.start : run.stop - segment.start]
            arrived, kept = sum[self._bytes_of(segment, run)], _run_of(self._residual, run)
            peak = self.codec.add_difference(arrived, *own, result, residual=kept)
            read = max(read, peak)
        return read

    def _bytes_of(self, segment: Segment, run: slice) -> slice:
        """Return the bytes of a segment's payload that encode `run`, which are whole blocks."""
        encoded_bytes, first = self.codec.encoded_bytes, segment.offset
        return slice(encoded_bytes(run.start) - first, encoded_bytes(run.stop) - first)

    def _requantised(
        self,
        segment: Segment,
        run: slice,
        sum: memoryview,
        senders: tuple[PeerId, ...],
        own: Own,
        residual: Floats | None,
        *,
        last: bool,
    ) -> tuple[float, float]:
        """Add `own`, our values of the elements `run`, to `sum`, and quantise the result into the
        segment's place. The segment's `sum` came from the last of `senders`; `own` already includes
        the sums of the other senders. Return the peaks of the sum and of the result.
        """
        divisor = self._divisor if last else 1.0
        bytes_of, kept = self._bytes_of(segment, run), _run_of(self._residual_out, run)
        arrived, place = sum[bytes_of], self.place(segment)[bytes_of]
        try:
            return self.codec.add_difference_requantise(
                arrived, *own, divisor, place, residual=residual, residual_out=kept
            )
        except BadScale as exc:
            raise Blamed(_their_fault(senders[-1], exc.what)) from exc
        except NonFinite as exc:
            self.contribute(segment)  # raises if our own contribution is too large or not finite
            if len(senders) > 1:  # With one sender, the kernel may have overwritten the sum.
                limit = self.influence.sum_max(segment.part, senders[-1])
                self._examine(segment, sum, senders[-1], limit)
            names = " and ".join(map(label, senders))
            raise Blamed(Blame(senders, f"the sums of {names} are out of range")) from exc

    def _examine(self, segment: Segment, payload: memoryview, sender: PeerId, limit: float) -> None:
        """Check that a payload that has not been read yet is valid and within `limit`."""
        try:
            peak = self.codec.peak(payload, segment.stop - segment.start)
        except BadScale as exc:
            raise Blamed(_their_fault(sender, exc.what)) from exc
        _hold(sender, self._closely(segment, payload, peak, limit), limit)

    def _hold_sum(self, segment: Segment, sum: memoryview, sender: PeerId, peak: float) -> None:
        limit = self.influence.sum_max(segment.part, sender)
        _hold(sender, self._closely(segment, sum, peak, limit), limit)

    def _closely(self, segment: Segment, payload: memoryview, peak: float, limit: float) -> float:
        """Return the largest magnitude in `payload`. According to the scales it is `peak`, but
        forged codes can exceed the peak. So near the limit every element is read. Payloads of
        honest peers are usually far below the limit, so they are not read again.
        """
        if not peak <= limit < peak * self.codec.reach:
            return peak
        values = np.empty(segment.stop - segment.start, np.float32)
        self.codec.dequantise(payload, values)
        return float(np.abs(values).max())

    def _limit(self, segment: Segment, *, last: bool) -> float:
        """Return the bound for a result that we compute and send."""
        influence = self.influence
        return influence.mean_max if last else influence.sum_max(segment.part, self._me)

    def _hold_own(self, peak: float, limit: float) -> None:
        if peak > limit:
            what = f"the weights of {label(self._me)} moved farther than this run allows"
            raise Blamed(
                Blame((self._me,), f"{what}: by {peak:.3g}; the maximum is {limit:.3g}", own=True)
            )

    def _quantise_own(self, start: int, stop: int, out: memoryview) -> float:
        made, first = 0.0, self.codec.encoded_bytes(start)
        for window in self._source.windows(start, stop):
            run = slice(window.start, window.stop)
            encoded_bytes = self.codec.encoded_bytes
            place = out[encoded_bytes(run.start) - first : encoded_bytes(run.stop) - first]
            try:
                peak = self.codec.quantise_difference(
                    window.vector,
                    window.subtrahend,
                    self._weight,
                    place,
                    residual=_run_of(self._residual, run),
                    residual_out=_run_of(self._residual_out, run),
                )
            except NonFinite as exc:
                at = window.start + exc.block * self.codec.block
                what = f"the pseudo-gradient of {label(self._me)} is not finite near element {at}"
                raise Blamed(Blame((self._me,), what, own=True)) from exc
            made = max(made, peak)
        return made


class Accumulator:
    """Adds the sums of several neighbours, one segment after another. Used by one thread."""

    def __init__(self, arithmetic: Arithmetic, segments: Sequence[Segment]) -> None:
        """Sums for `segments` are added in this order, one segment after another."""
        self._arithmetic = arithmetic
        longest = max((segment.stop - segment.start for segment in segments), default=0)
        self._total = np.empty(longest, np.float32)
        bytes_max = max((segment.bytes for segment in segments), default=0)
        self._arriving = memoryview(bytearray(bytes_max))
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        """The segment whose sums are being added, or are next; None when all are done."""
        self.added = 0
        """Number of sums that have been added for `_segment`."""

    def due(self, segment: Segment) -> bool:
        """Return whether sums for `segment` can be received now."""
        return self._segment == segment

    def place(self, segment: Segment) -> memoryview:
        """Return the buffer in which the next sum for `segment` is received."""
        return self._arriving[: segment.bytes]

    def add(self, segment: Segment, sender: PeerId) -> None:
        """Add the sum that has arrived. The first one is added to our own contribution."""
        assert self._segment == segment
        arrived, total = self.place(segment), self._total_of(segment)
        self._arithmetic.accumulate(segment, arrived, sender, total, first=not self.added)
        self.added += 1

    def finish(self, segment: Segment, senders: tuple[PeerId, ...], *, last: bool) -> None:
        """Add the last sum, quantise the total into the segment's place, and begin the next
        segment.
        """
        assert self._segment == segment
        assert self.added == len(senders) - 1
        self._segment, self.added = next(self._segments, None), 0
        arrived, total = self.place(segment), self._total_of(segment)
        self._arithmetic.finish(segment, arrived, senders, total, last=last)

    def _total_of(self, segment: Segment) -> Floats:
        return self._total[: segment.stop - segment.start]


def _check_contribution(
    source: Contribution, request: ReduceRequest, residual: Floats | None
) -> None:
    """A residual that is added during the reduce would make the update depend on numbers that only
    this peer has.
    """
    if source.codec != request.codec:
        raise LocalProtocolError("a contribution must be quantised with the codec of the run")
    if residual is not None:
        raise LocalProtocolError(
            "a contribution that is quantised once includes its residual already"
        )


def _run_of(vector: Floats | None, run: slice) -> Floats | None:
    return None if vector is None else vector[run]


def _hold(sender: PeerId, peak: float, limit: float) -> None:
    """Blame `sender` if its segment exceeds `limit`, the bound for the contributions in it."""
    if peak > limit:
        what = f"its magnitude is {peak:.3g}; the run allows {limit:.3g}"
        raise Blamed(_their_fault(sender, what))


def _their_fault(sender: PeerId, what: str) -> Blame:
    return Blame((sender,), f"{label(sender)} sent an invalid segment: {what}")
