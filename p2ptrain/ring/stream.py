"""One stream of the ring: a thread that receives and adds, and a thread that sends.

It does not know why a reduce was asked for, nor what the other streams do; all share one verdict.
When there is one, the sending thread tells the next peer whom we suspect, and the receiving thread
reads on for a while without heeding what it reads: were the socket closed at once, the previous
peer would take us for dead before the true reason has gone round.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from p2ptrain.dataplane import SecureSocket, ShutDownHere
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.blame import Blame, Blamed, Verdict
from p2ptrain.ring.bucket import TokenBucket
from p2ptrain.ring.outbox import Outbox
from p2ptrain.ring.plan import Duty, RingPlan, Segment
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.wire import (
    ABORT_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Kind,
    decode_blame,
    decode_header,
    encode_blame,
)

SECOND_OPINION_S = 0.2
"""A connection to the next peer breaks when that peer dies, but also when it leaves an attempt that
another has ended. The latter's reason comes round to us within this time, on most paths."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all streams of one reduce have in common."""

    request: ReduceRequest
    plan: RingPlan
    tag: bytes
    arithmetic: Arithmetic
    verdict: Verdict
    rate_limit: TokenBucket | None


class Stream:
    """`receive` and `send` are the bodies of its two threads."""

    def __init__(
        self, shared: Shared, number: int, previous: SecureSocket, next_: SecureSocket
    ) -> None:
        self._shared = shared
        self._number = number
        self._previous = previous
        self._next = next_
        plan = shared.plan.streams[number]
        self._outbox = Outbox(plan.sends)
        self._expected = plan.receives
        self._arrived = [0 for _ in plan.receives]
        self._left = sum(len(hop) for hop in plan.receives)
        self._silence_s = shared.request.silence_s
        self._payload_sent = 0
        self._payload_received = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.sending_s = 0.0
        self.receiving_s = 0.0
        self.scattered_at = time.monotonic()

    @property
    def bytes_done(self) -> int:
        """Sent and received, without headers. Each thread has a count of its own."""
        return self._payload_sent + self._payload_received

    def stop(self) -> None:
        """Wake the sending thread. The sockets are shut down by their owner."""
        self._outbox.stop()

    # ---- receiving -----------------------------------------------------------------------------

    def receive(self) -> None:
        """Receive and work on every segment of the plan, or see the verdict through."""
        verdict = self._shared.verdict
        try:
            while self._left and not verdict.settled:
                header = self._receive_header(self._silence_s)
                if header.kind is Kind.ABORT:
                    verdict.settle(self._receive_blame(header))
                    return
                if header.kind is Kind.SEGMENT:
                    self._receive_segment(self._claim(header))
        except Blamed as exc:
            verdict.settle(exc.blame)
        except ShutDownHere:
            verdict.settle(self._blame_me())
        except (PeerError, RemoteProtocolError) as exc:
            verdict.settle(self._blame_previous(exc.what))
        if verdict.settled and self._left:
            self._read_on()

    def _receive_header(self, seconds: float) -> Header:
        data = bytearray(HEADER_BYTES)
        self._receive_into(memoryview(data), seconds)
        header = decode_header(data)
        mine = self._shared.request
        if (header.step, header.attempt) != (mine.step, mine.attempt):
            raise RemoteProtocolError(
                f"a frame is for step {header.step}, attempt {header.attempt}; "
                f"this is step {mine.step}, attempt {mine.attempt}"
            )
        if header.tag != self._shared.tag:
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
        before = hop + 1 - self._shared.plan.peers
        if before >= 0 and not self._outbox.has_let_go(before, index):
            raise RemoteProtocolError("a result came before the sum that it is made of had gone")
        return segment

    def _receive_segment(self, segment: Segment) -> None:
        arithmetic, duty = self._shared.arithmetic, self._shared.plan.duty(segment.hop)
        self._receive_into(arithmetic.place(segment), self._silence_s)
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
        self._payload_received += segment.bytes
        if duty is Duty.FINISH:
            self.scattered_at = time.monotonic()

    def _receive_blame(self, header: Header) -> Blame:
        if header.length > ABORT_BYTES_MAX:
            raise RemoteProtocolError(f"an abort of {header.length} bytes")
        body = bytearray(header.length)
        self._receive_into(memoryview(body), self._silence_s)
        return decode_blame(body, self._shared.request.peers)

    def _discard(self, header: Header) -> None:
        """Read the body of a segment without heeding it; the plan bounds its length."""
        largest = max((segment.bytes for hop in self._expected for segment in hop), default=0)
        if header.length > largest:
            raise RemoteProtocolError("a segment is longer than any of the plan")
        self._receive_into(memoryview(bytearray(header.length)), self._silence_s)

    def _read_on(self) -> None:
        """Until the previous peer has said that it knows, or is gone, or our sockets are shut."""
        try:
            while True:
                header = self._receive_header(self._silence_s)
                if header.kind is Kind.ABORT:
                    return
                self._discard(header)
        except (PeerError, RemoteProtocolError):
            return

    def _receive_into(self, view: memoryview, seconds: float) -> None:
        begun = time.monotonic()
        self._previous.set_deadline(seconds)
        self._previous.receive_into(view)
        self.receiving_s += time.monotonic() - begun
        self.received_bytes += len(view)

    def _blame_previous(self, what: str) -> Blame:
        peer = self._shared.request.previous
        return Blame((peer,), f"{label(peer)}, before us in the ring: {what}")

    def _blame_me(self) -> Blame:
        """Our owner closed a connection under us without a word: without us, it may go on."""
        me = self._shared.request.peers[self._shared.request.me]
        return Blame((me,), f"{label(me)} shut its connections down")

    # ---- sending -------------------------------------------------------------------------------

    def send(self) -> None:
        """Send every segment of the plan, or tell the next peer of the verdict."""
        verdict = self._shared.verdict
        try:
            while not self._outbox.finished and not verdict.settled:
                segment = self._outbox.take(self._silence_s / 4)
                if segment is not None:
                    self._send_segment(segment)
                elif not verdict.settled:
                    self._send_frame(Kind.WAITING)
        except Blamed as exc:
            verdict.settle(exc.blame)
        except ShutDownHere:
            verdict.settle(self._blame_me())
        except PeerError as exc:
            if not verdict.wait(SECOND_OPINION_S):
                verdict.settle(self._blame_next(exc.what))
        if verdict.settled:
            self._say_abort()

    def _send_segment(self, segment: Segment) -> None:
        arithmetic = self._shared.arithmetic
        if segment.hop == 0:
            arithmetic.contribute(segment)
        self._outbox.let_go(segment)
        self._send_frame(Kind.SEGMENT, segment, arithmetic.place(segment))
        self._payload_sent += segment.bytes

    def _send_frame(
        self, kind: Kind, segment: Segment | None = None, body: bytes | memoryview = b""
    ) -> None:
        request = self._shared.request
        header = Header(
            kind=kind,
            stream=self._number,
            hop=segment.hop if segment else 0,
            index=segment.index if segment else 0,
            length=len(body),
            step=request.step,
            attempt=request.attempt,
            tag=self._shared.tag,
        )
        if kind is Kind.SEGMENT and not self._keep_to_rate(HEADER_BYTES + len(body)):
            return
        begun = time.monotonic()
        self._next.set_deadline(self._silence_s)
        self._next.send_all(header.encode())
        if body:
            self._next.send_all(body)
        self.sending_s += time.monotonic() - begun
        self.sent_bytes += HEADER_BYTES + len(body)

    def _keep_to_rate(self, count: int) -> bool:
        """Wait for our turn; whether it came before a verdict. A long wait is no silence."""
        limit, verdict = self._shared.rate_limit, self._shared.verdict
        wait_s = limit.reserve(count) if limit else 0.0
        while wait_s > 0 and not verdict.settled:
            verdict.wait(min(wait_s, self._silence_s / 4))
            wait_s -= self._silence_s / 4
            if wait_s > 0 and not verdict.settled:
                self._send_frame(Kind.WAITING)
        return not verdict.settled

    def _say_abort(self) -> None:
        blame = self._shared.verdict.blame
        assert blame is not None
        try:
            self._send_frame(Kind.ABORT, None, encode_blame(blame))
        except PeerError:
            return  # the next peer is gone, or has left: it needs no telling

    def _blame_next(self, what: str) -> Blame:
        peer: PeerId = self._shared.request.next
        return Blame((peer,), f"{label(peer)}, after us in the ring: {what}")
