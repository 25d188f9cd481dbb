"""How fast a path is, by sending something over it: for pairs of peers that never sent anything.

    dialler    frame of canonical msgpack {"bytes": how many it wants}
    listener   one byte at once, 1 for yes and 0 for not now; then so many bytes, or less

The first byte tells the delay. What counts for the rate is the second half of the bytes, or of the
time, whichever is over first: at the beginning TCP finds out how much the path takes.

It does not know who should probe whom, nor when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2ptrain.dataplane.sockets import SecureSocket
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import PeerLost, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import Allowance

PURPOSE = "probe"

PROBE_BYTES_MAX = 2 << 20
PROBE_S = 3.0
"""Of sending. A path that needs more is measured by what came until then."""

SLICE_BYTES = 64 << 10
"""Others come between two slices, and the rate limit is asked before each."""

REQUEST_BYTES_MAX = 64
PEER_AGAIN_S = 60.0
"""Nobody has us send it probes all the time."""

Limit = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Probed:
    """`count_bytes` came in `seconds`, both of the half that counts; 0 if the peer had no time."""

    round_trip_s: float
    count_bytes: int
    seconds: float


def probe(sock: SecureSocket, count_bytes: int = PROBE_BYTES_MAX) -> Probed:
    """Measure the path from the peer to here. Blocks; for a connection with purpose PURPOSE.

    Raises:
        PeerLost, PeerTooSlow.
    """
    sock.set_deadline(2 * PROBE_S)
    asked = time.monotonic()
    sock.send_frame(pack({"bytes": count_bytes}))
    answer = bytearray(1)
    sock.receive_into(answer)
    began = time.monotonic()
    if not answer[0]:
        return Probed(began - asked, 0, 0.0)
    view = memoryview(bytearray(SLICE_BYTES))
    came: list[tuple[float, int]] = [(began, 0)]
    while (total := came[-1][1]) < count_bytes and came[-1][0] < began + PROBE_S:
        piece = view[: min(SLICE_BYTES, count_bytes - total)]
        try:
            sock.receive_into(piece)
        except PeerLost:
            break  # It has something better to do now; what came counts.
        came.append((time.monotonic(), total + len(piece)))
    return _second_half(asked, came)


def _second_half(asked: float, came: list[tuple[float, int]]) -> Probed:
    (began, _), (ended, total) = came[0], came[-1]
    since, before = next(
        (at, so_far)
        for at, so_far in reversed(came)
        if 2 * so_far <= total and 2 * (at - began) <= ended - began
    )
    return Probed(began - asked, total - before, max(ended - since, 1e-6))


class ProbeServer:
    """A listener's handler for PURPOSE. Not while `busy` says so, and each peer now and then only.

    `limit` is called with a number of bytes before they are sent, and returns when they may be.
    """

    def __init__(self, busy: Callable[[], bool], limit: Limit | None = None) -> None:
        self._busy = busy
        self._limit = limit
        self._lock = threading.Lock()
        self._served = Allowance(1, 1 / PEER_AGAIN_S)

    def __call__(self, sock: SecureSocket, hello: Mapping[str, object]) -> None:
        """Raises PeerError where the connection ends early, RemoteProtocolError where the request
        is none.
        """
        sock.set_deadline(2 * PROBE_S)
        left = _wanted(sock)
        if not self._may(sock.peer):
            sock.send_all(b"\0")
            return
        sock.send_all(b"\1")
        zeros, ends = memoryview(bytes(SLICE_BYTES)), time.monotonic() + PROBE_S
        while left > 0 and time.monotonic() < ends and not self._busy():
            piece = zeros[: min(left, SLICE_BYTES)]
            if self._limit is not None:
                self._limit(len(piece))
            sock.send_all(piece)
            left -= len(piece)

    def _may(self, peer: PeerId) -> bool:
        with self._lock:
            return not self._busy() and self._served.take(peer, 1, time.monotonic())


def _wanted(sock: SecureSocket) -> int:
    request = unpack(sock.receive_frame(REQUEST_BYTES_MAX), bytes_max=REQUEST_BYTES_MAX)
    count_bytes = fields(request, bytes=int)["bytes"]
    assert isinstance(count_bytes, int)
    if not 0 < count_bytes <= PROBE_BYTES_MAX:
        raise RemoteProtocolError("a probe wants too much, or nothing", peer=sock.peer)
    return count_bytes
