"""The receiving thread of one stream: check, receive in place, add, hand on.

It trusts no number that it receives: each frame must be the one that the plan says may come now.
Once the attempt is over for another reason, it reads on for a while without heeding what it reads:
were the socket closed at once, the previous peer would take us for dead before the true reason has
gone round.
"""

from __future__ import annotations

import time

from p2ptrain.dataplane import SecureSocket, ShutDownHere
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame, Blamed
from p2ptrain.ring.outbox import Outbox
from p2ptrain.ring.plan import Duty, Segment
from p2ptrain.ring.wire import (
    ABORT_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Kind,
    decode_blame,
    decode_header,
)


class Receiver:
    """`run` is the body of the thread. The counts may be read from any thread."""

    def __init__(
        self, attempt: Attempt, stream: int, previous: SecureSocket, outbox: Outbox
    ) -> None:
        self._attempt = attempt
        self._number = stream
        self._socket = previous
        self._outbox = outbox
        self._expected = attempt.plan.streams[stream].receives
        self._arrived = [0 for _ in self._expected]
        self._left = sum(len(hop) for hop in self._expected)
        self._silence_s = attempt.request.silence_s
        self.payload_bytes = 0
        self.wire_bytes = 0
        self.waiting_s = 0.0
        self.scattered_at = time.monotonic()

    def run(self) -> None:
        """Receive and work on every segment of the plan, or see the verdict through."""
        verdict = self._attempt.verdict
        try:
            while self._left and not verdict.settled:
                header = self._receive_header()
                if header.kind is Kind.ABORT:
                    verdict.settle(self._receive_blame(header))
                    return
                if header.kind is Kind.SEGMENT:
                    self._receive_segment(self._claim(header))
        except Blamed as exc:
            verdict.settle(exc.blame)
        except ShutDownHere:
            verdict.settle(self._attempt.blame_me())
        except (PeerError, RemoteProtocolError) as exc:
            verdict.settle(self._attempt.blame_previous(exc.what))
        if verdict.settled and self._left:
            self._read_on()

    def _receive_header(self) -> Header:
        data = bytearray(HEADER_BYTES)
        self._receive_into(memoryview(data))
        header = decode_header(data)
        mine = self._attempt.request
        if (header.step, header.attempt) != (mine.step, mine.attempt):
            raise RemoteProtocolError(
                f"a frame is for step {header.step}, attempt {header.attempt}; "
                f"this is step {mine.step}, attempt {mine.attempt}"
            )
        if header.tag != self._attempt.tag:
            raise RemoteProtocolError("a frame is for another reduce of this step and attempt")
        if header.stream != self._number:
            raise RemoteProtocolError(f"a frame of stream {header.stream} came on {self._number}")
        if header.kind is Kind.WAITING and header.length:
            raise RemoteProtocolError("a frame that says it waits has a body")
        return header

    def _claim(self, header: Header) -> Segment:
        """The segment that must come next in the header's hop, if the header is right about it."""
        hop, index = header.hop, header.index
        if hop >= len(self._expected) or index != self._arrived[hop]:
            raise RemoteProtocolError(f"segment {index} of hop {hop} does not come now")
        if index >= len(self._expected[hop]):
            raise RemoteProtocolError(f"hop {hop} has no segment {index}")
        segment = self._expected[hop][index]
        if header.length != segment.bytes:
            raise RemoteProtocolError(
                f"a frame of {header.length} bytes, where {segment.bytes} are due"
            )
        before = hop + 1 - self._attempt.plan.peers
        if before >= 0 and not self._outbox.has_let_go(before, index):
            raise RemoteProtocolError("a result came before the sum that it is made of had gone")
        return segment

    def _receive_segment(self, segment: Segment) -> None:
        arithmetic, duty = self._attempt.arithmetic, self._attempt.plan.duty(segment.hop)
        self._receive_into(arithmetic.place(segment))
        if duty is Duty.PASS_ON:
            arithmetic.add(segment)
        elif duty is Duty.FINISH:
            arithmetic.finish(segment)
        else:
            arithmetic.accept(segment)
        if duty is not Duty.KEEP:
            self._outbox.put(segment.at_hop(segment.hop + 1))
        self._arrived[segment.hop] += 1
        self._left -= 1
        self.payload_bytes += segment.bytes
        if duty is Duty.FINISH:
            self.scattered_at = time.monotonic()

    def _receive_blame(self, header: Header) -> Blame:
        if header.length > ABORT_BYTES_MAX:
            raise RemoteProtocolError(f"an abort of {header.length} bytes")
        body = bytearray(header.length)
        self._receive_into(memoryview(body))
        return decode_blame(body, self._attempt.request.peers)

    def _discard(self, header: Header) -> None:
        """Read the body of a segment without heeding it; the plan bounds its length."""
        largest = max((segment.bytes for hop in self._expected for segment in hop), default=0)
        if header.length > largest:
            raise RemoteProtocolError("a segment is longer than any of the plan")
        self._receive_into(memoryview(bytearray(header.length)))

    def _read_on(self) -> None:
        """Until the previous peer has said that it knows, or is gone, or our sockets are shut."""
        try:
            while True:
                header = self._receive_header()
                if header.kind is Kind.ABORT:
                    return
                self._discard(header)
        except (PeerError, RemoteProtocolError):
            return

    def _receive_into(self, view: memoryview) -> None:
        begun = time.monotonic()
        self._socket.set_deadline(self._silence_s)
        self._socket.receive_into(view)
        self.waiting_s += time.monotonic() - begun
        self.wire_bytes += len(view)
