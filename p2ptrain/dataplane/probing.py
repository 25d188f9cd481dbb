"""Measure the rate of a path between two peers that have not exchanged data yet, by sending bytes.

    dialler    a frame of canonical msgpack, {"bytes": the number of bytes that it wants}
    listener   one byte immediately: 1 for yes, 0 for busy; then up to that number of bytes

The first byte gives the round-trip time. The rate is measured over the second half of the bytes or
of the time, whichever begins earlier, because TCP needs the first half to reach the path's rate.

This module does not decide which peers probe each other, or when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from p2ptrain.dataplane.sockets import SecureSocket
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import PeerLost, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import Allowance

PURPOSE = "probe"

PROBE_BYTES_MAX = 2 << 20
PROBE_S = 3.0
"""Maximum seconds of sending. On a slow path, we measure the bytes that arrived by then."""

SLICE_BYTES = 64 << 10
"""Bytes sent at a time. The rate limiter is called before each slice, so other streams can send in
between."""

REQUEST_BYTES_MAX = 64
PEER_AGAIN_S = 60.0
"""Minimum seconds between two probes for the same peer, so that a peer cannot make this node send
all the time."""

Limit = Callable[[int], object]
"""`limit(count)` blocks until a rate limit allows `count` more bytes."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`count_bytes` arrived in the last `seconds` of the probe, without its first half. If the peer
    was busy, `count_bytes` is 0."""

    round_trip_s: float
    count_bytes: int
    seconds: float


def probe(
    sock: SecureSocket, count_bytes: int = PROBE_BYTES_MAX, probe_s: float | None = None
) -> ProbeResult:
    """Measure the path from the peer to this node, on a connection with the purpose PURPOSE. This
    blocks for about `probe_s` (by default PROBE_S), and for 2 × `probe_s` at most. Raises PeerLost
    or PeerTooSlow."""
    probe_s = probe_s or PROBE_S
    sock.set_deadline(2 * probe_s)
    asked = time.monotonic()
    sock.send_frame(pack({"bytes": count_bytes}))
    answer = bytearray(1)
    sock.receive_into(answer)
    began = time.monotonic()
    if not answer[0]:
        return ProbeResult(began - asked, 0, 0.0)
    view = memoryview(bytearray(SLICE_BYTES))
    came: list[tuple[float, int]] = [(began, 0)]
    while (total := came[-1][1]) < count_bytes and came[-1][0] < began + probe_s:
        piece = view[: min(SLICE_BYTES, count_bytes - total)]
        try:
            sock.receive_into(piece)
        except PeerLost:
            break  # The peer has ended the probe and closed the connection: use what arrived.
        came.append((time.monotonic(), total + len(piece)))
    return measured(asked, came)


def measured(asked: float, came: Sequence[tuple[float, int]]) -> ProbeResult:
    """Return the result of a probe that was requested at `asked`. `came` lists pairs: a time, and
    the total bytes received by then. In the first pair, the peer's first byte arrives, which is not
    counted. Leave out the first half, as explained above."""
    (began, _), (ended, total) = came[0], came[-1]
    since, before = next(
        (at, so_far)
        for at, so_far in reversed(came)
        if 2 * so_far <= total and 2 * (at - began) <= ended - began
    )
    return ProbeResult(began - asked, total - before, max(ended - since, 1e-6))


class ProbeServer:
    """A listener's handler for PURPOSE. It refuses probes while `busy()` is true, and limits the
    probes per peer. A probe ends after `probe_s`, by default PROBE_S."""

    def __init__(
        self, busy: Callable[[], bool], limit: Limit | None = None, probe_s: float | None = None
    ) -> None:
        self._busy = busy
        self._limit = limit
        self._probe_s = probe_s or PROBE_S
        self._lock = threading.Lock()
        self._served = Allowance(1, 1 / PEER_AGAIN_S)

    def __call__(self, sock: SecureSocket, hello: Mapping[str, object]) -> None:
        """Serve one probe. Raises PeerError if the connection ends early, RemoteProtocolError if
        the request is malformed."""
        sock.set_deadline(2 * self._probe_s)
        left = wanted_bytes(sock)
        if not self._may(sock.peer):
            sock.send_all(b"\0")
            return
        sock.send_all(b"\1")
        zeros, ends = memoryview(bytes(SLICE_BYTES)), time.monotonic() + self._probe_s
        while left > 0 and time.monotonic() < ends and not self._busy():
            piece = zeros[: min(left, SLICE_BYTES)]
            if self._limit is not None:
                self._limit(len(piece))
            sock.send_all(piece)
            left -= len(piece)

    def _may(self, peer: PeerId) -> bool:
        with self._lock:
            return not self._busy() and self._served.consume(peer, 1, time.monotonic())


def wanted_bytes(sock: SecureSocket) -> int:
    """Receive a request for a probe. Return how many bytes it asks for. Raises PeerError, or
    RemoteProtocolError if the request is malformed or asks for too many bytes."""
    request = unpack(sock.receive_frame(REQUEST_BYTES_MAX), bytes_max=REQUEST_BYTES_MAX)
    count_bytes = fields(request, bytes=int)["bytes"]
    assert isinstance(count_bytes, int)
    if not 0 < count_bytes <= PROBE_BYTES_MAX:
        raise RemoteProtocolError("a probe asks for zero bytes or too many", peer=sock.peer)
    return count_bytes
