"""Measure the rate of a path by sending bytes over it, for pairs of peers without any transfer yet.

    dialler    frame of canonical msgpack {"bytes": how many it wants}
    listener   one byte at once, 1 for yes and 0 for not now; then so many bytes, or less

The first byte gives the delay. The rate is measured after half of the bytes have come or half of
the time is over, whichever is first, because TCP first has to find out how much the path takes.

This module does not know who should probe whom, nor when.
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
"""Seconds of sending. A slower path is measured by the bytes that came until then."""

SLICE_BYTES = 64 << 10
"""Bytes between two checks: the rate limit is asked before each slice, and others may send."""

REQUEST_BYTES_MAX = 64
PEER_AGAIN_S = 60.0
"""Shortest time between two probes for the same peer, so that nobody makes us send all the time."""

Limit = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`count_bytes` came in `seconds`, both after the halfway point; 0 if the peer was busy."""

    round_trip_s: float
    count_bytes: int
    seconds: float


def probe(
    sock: SecureSocket, count_bytes: int = PROBE_BYTES_MAX, probe_s: float | None = None
) -> ProbeResult:
    """Measure the path from the peer to here, on a connection with purpose PURPOSE. Blocks for
    `probe_s` at most (PROBE_S by default), after the peer's first byte.

    Raises:
        PeerLost, PeerTooSlow.
    """
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
            break  # It has become busy; the bytes that came count.
        came.append((time.monotonic(), total + len(piece)))
    return measured(asked, came)


def measured(asked: float, came: Sequence[tuple[float, int]]) -> ProbeResult:
    """Return the result of a probe that was requested at `asked`. `came` has the bytes that had
    come by each time, beginning with none at the peer's first byte. The first half is left out, by
    bytes or by time, whichever is shorter: TCP finds its rate meanwhile.
    """
    (began, _), (ended, total) = came[0], came[-1]
    since, before = next(
        (at, so_far)
        for at, so_far in reversed(came)
        if 2 * so_far <= total and 2 * (at - began) <= ended - began
    )
    return ProbeResult(began - asked, total - before, max(ended - since, 1e-6))


class ProbeServer:
    """A listener's handler for PURPOSE. It refuses while `busy()`, and serves each peer rarely.

    `limit` is called with a number of bytes before they are sent, and returns when they may be
    sent. A probe ends after `probe_s`, by default PROBE_S.
    """

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
        the request is malformed.
        """
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
    """Receive a request for a probe. Return how many bytes it asks for.

    Raises PeerError, or RemoteProtocolError if it is malformed or asks for too much.
    """
    request = unpack(sock.receive_frame(REQUEST_BYTES_MAX), bytes_max=REQUEST_BYTES_MAX)
    count_bytes = fields(request, bytes=int)["bytes"]
    assert isinstance(count_bytes, int)
    if not 0 < count_bytes <= PROBE_BYTES_MAX:
        raise RemoteProtocolError("a probe asks for too many bytes, or for none", peer=sock.peer)
    return count_bytes
