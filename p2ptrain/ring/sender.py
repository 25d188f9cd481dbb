"""The sending thread of one stream: what is ready, at the agreed rate, or a word that we wait.

When the attempt is over before its end, it tells the next peer whom we suspect.
"""

from __future__ import annotations

import time

from p2ptrain.dataplane import SecureSocket, ShutDownHere
from p2ptrain.errors import PeerError
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blamed
from p2ptrain.ring.outbox import Outbox
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.wire import HEADER_BYTES, Header, Kind, encode_blame

SECOND_OPINION_S = 0.2
"""A connection to the next peer breaks when that peer dies, but also when it leaves an attempt that
another has ended. The latter's reason comes round to us within this time, on most paths."""


class Sender:
    """`run` is the body of the thread. The counts may be read from any thread."""

    def __init__(self, attempt: Attempt, stream: int, next_: SecureSocket, outbox: Outbox) -> None:
        self._attempt = attempt
        self._number = stream
        self._socket = next_
        self._outbox = outbox
        self._silence_s = attempt.request.silence_s
        self.payload_bytes = 0
        self.wire_bytes = 0
        self.sending_s = 0.0

    def run(self) -> None:
        """Send every segment of the plan, or tell the next peer of the verdict."""
        verdict = self._attempt.verdict
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
            verdict.settle(self._attempt.blame_me())
        except PeerError as exc:
            if not verdict.wait(SECOND_OPINION_S):
                verdict.settle(self._attempt.blame_next(exc.what))
        if verdict.settled:
            self._say_abort()

    def _send_segment(self, segment: Segment) -> None:
        arithmetic = self._attempt.arithmetic
        if segment.hop == 0:
            arithmetic.contribute(segment)
        self._outbox.let_go(segment)
        self._send_frame(Kind.SEGMENT, segment, arithmetic.place(segment))
        self.payload_bytes += segment.bytes

    def _send_frame(
        self, kind: Kind, segment: Segment | None = None, body: bytes | memoryview = b""
    ) -> None:
        request = self._attempt.request
        header = Header(
            kind=kind,
            stream=self._number,
            hop=segment.hop if segment else 0,
            index=segment.index if segment else 0,
            length=len(body),
            step=request.step,
            attempt=request.attempt,
            tag=self._attempt.tag,
        )
        if kind is Kind.SEGMENT and not self._keep_to_rate(HEADER_BYTES + len(body)):
            return
        begun = time.monotonic()
        self._socket.set_deadline(self._silence_s)
        self._socket.send_all(header.encode())
        if body:
            self._socket.send_all(body)
        self.sending_s += time.monotonic() - begun
        self.wire_bytes += HEADER_BYTES + len(body)

    def _keep_to_rate(self, count: int) -> bool:
        """Wait for our turn; whether it came before a verdict. A long wait is no silence."""
        limit, verdict = self._attempt.rate_limit, self._attempt.verdict
        wait_s = limit.reserve(count) if limit else 0.0
        while wait_s > 0 and not verdict.settled:
            verdict.wait(min(wait_s, self._silence_s / 4))
            wait_s -= self._silence_s / 4
            if wait_s > 0 and not verdict.settled:
                self._send_frame(Kind.WAITING)
        return not verdict.settled

    def _say_abort(self) -> None:
        blame = self._attempt.verdict.blame
        assert blame is not None
        try:
            self._send_frame(Kind.ABORT, None, encode_blame(blame))
        except PeerError:
            return  # the next peer is gone, or has left: it needs no telling
