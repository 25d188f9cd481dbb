"""What a peer does to a segment, and whose fault it is when that cannot be done.

It reads θ and the local weights and never writes them. All that travels lies in `payload`, each
segment in its own place: first the sum on its way, later the mean. A mean can come only after the
sum that it is made of has gone, so one place is enough and no other buffers are needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2ptrain import kernels
from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import BadScale, NonFinite, encoded_bytes
from p2ptrain.names import label
from p2ptrain.ring.blame import Blame, Blamed
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.request import ReduceRequest


class Arithmetic:
    """The kernels, applied to one peer's vectors for one request. Shared by its threads."""

    def __init__(
        self,
        request: ReduceRequest,
        theta: NDArray[np.float32],
        local: NDArray[np.float32],
        out: bytearray | memoryview | NDArray[np.uint8],
    ) -> None:
        whole: memoryview = memoryview(out)  # type: ignore[arg-type]  # arrays are buffers
        self.payload = whole.cast("B")
        expected = encoded_bytes(request.numel, request.block)
        if self.payload.readonly or len(self.payload) != expected:
            raise LocalProtocolError(f"out must be {expected} writable bytes")
        if theta.shape != (request.numel,) or local.shape != (request.numel,):
            raise LocalProtocolError(f"θ and the local weights must have {request.numel} elements")
        self._theta = theta
        self._local = local
        self._block = request.block
        self._weight = float(request.weights[request.me])
        self._total = float(sum(request.weights))
        self._me = request.peers[request.me]
        self._previous = request.previous

    def alone(self) -> None:
        """The whole reduce of a ring of one: the mean is the own pseudo-gradient."""
        try:
            kernels.quantise_difference(self._theta, self._local, 1.0, self.payload, self._block)
        except NonFinite as exc:
            raise Blamed(self._own_fault(0, exc)) from exc

    def place(self, segment: Segment) -> memoryview:
        """Where `segment` is received, added to, sent from, and in the end stays."""
        return self.payload[segment.offset : segment.offset + segment.bytes]

    def contribute(self, segment: Segment) -> None:
        """A segment of the own part sets out: quantise the own contribution."""
        theta, local = self._slices(segment)
        try:
            kernels.quantise_difference(
                theta, local, self._weight, self.place(segment), self._block
            )
        except NonFinite as exc:
            raise Blamed(self._own_fault(segment.start, exc)) from exc

    def add(self, segment: Segment) -> None:
        """Add the own contribution to the sum that has arrived."""
        self._add(segment, 1.0)

    def finish(self, segment: Segment) -> None:
        """Add the own contribution, the last one, and divide: the mean."""
        self._add(segment, self._total)

    def accept(self, segment: Segment) -> None:
        """A mean has arrived: is it one that a codec wrote?"""
        try:
            kernels.check(self.place(segment), segment.stop - segment.start, self._block)
        except BadScale as exc:
            raise Blamed(self._their_fault(exc.what)) from exc

    def _add(self, segment: Segment, divisor: float) -> None:
        theta, local = self._slices(segment)
        place = self.place(segment)
        try:
            kernels.add_difference_requantise(
                place, theta, local, self._weight, divisor, place, self._block
            )
        except BadScale as exc:
            raise Blamed(self._their_fault(exc.what)) from exc
        except NonFinite as exc:
            if self._own_is_fine(theta, local):
                raise Blamed(self._their_fault("its sums are out of range")) from exc
            raise Blamed(self._own_fault(segment.start, exc)) from exc

    def _slices(self, segment: Segment) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._theta[segment.start : segment.stop], self._local[segment.start : segment.stop]

    def _own_is_fine(self, theta: NDArray[np.float32], local: NDArray[np.float32]) -> bool:
        scratch = bytearray(encoded_bytes(theta.size, self._block))
        try:
            kernels.quantise_difference(theta, local, self._weight, scratch, self._block)
        except NonFinite:
            return False
        return True

    def _own_fault(self, start: int, exc: NonFinite) -> Blame:
        at = start + exc.block * self._block
        what = f"the pseudo-gradient of {label(self._me)} is not finite near element {at}"
        return Blame((self._me,), what)

    def _their_fault(self, what: str) -> Blame:
        return Blame((self._previous,), f"{label(self._previous)} sent a bad segment: {what}")
