"""Measure the rate of a path from this node to a peer. `probing` measures the other direction.

    dialler    a frame of canonical msgpack, {"bytes": the number of bytes that it offers}
    listener   one byte immediately: 1 for yes, 0 for busy
    dialler    frames of zeros, and an empty frame at the end
    listener   a frame {"bytes": …, "microseconds": …}: what arrived in the second half

Only the listener knows when bytes arrive, because the dialler's kernel accepts many at once. So the
dialler takes the listener's word. A listener that lies misleads the user about one number; the node
does not use that number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from p2ptrain.dataplane.probing import (
    PEER_AGAIN_S,
    PROBE_BYTES_MAX,
    PROBE_S,
    REQUEST_BYTES_MAX,
    SLICE_BYTES,
    ProbeResult,
    measured,
    wanted_bytes,
)
from p2ptrain.dataplane.sockets import SecureSocket
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import Allowance

PURPOSE = "probe-up"


def probe_upload(
    sock: SecureSocket, count_bytes: int = PROBE_BYTES_MAX, probe_s: float = PROBE_S
) -> ProbeResult:
    """Measure the path from this node to the peer, on a connection with the purpose PURPOSE. This
    blocks for about `probe_s`, and for 3 × `probe_s` at most. If the peer was busy, the result's
    `count_bytes` is 0. Raises PeerLost, PeerTooSlow or RemoteProtocolError."""
    sock.set_deadline(3 * probe_s)
    asked = time.monotonic()
    sock.send_frame(pack({"bytes": count_bytes}))
    answer = bytearray(1)
    sock.receive_into(answer)
    began, left = time.monotonic(), count_bytes
    if not answer[0]:
        return ProbeResult(began - asked, 0, 0.0)
    zeros = memoryview(bytes(SLICE_BYTES))
    while left > 0 and time.monotonic() < began + probe_s:
        piece = zeros[: min(left, SLICE_BYTES)]
        sock.send_frame(piece)
        left -= len(piece)
    sock.send_frame(b"")
    return _parsed(sock, began - asked, count_bytes)


def _parsed(sock: SecureSocket, round_trip_s: float, sent: int) -> ProbeResult:
    reply = unpack(sock.receive_frame(REQUEST_BYTES_MAX), bytes_max=REQUEST_BYTES_MAX)
    told = fields(reply, bytes=int, microseconds=int)
    count, microseconds = told["bytes"], told["microseconds"]
    assert isinstance(count, int)
    assert isinstance(microseconds, int)
    if not (0 <= count <= sent and 0 < microseconds <= 10**9):
        raise RemoteProtocolError("a probe reports impossible numbers", peer=sock.peer)
    return ProbeResult(round_trip_s, count, microseconds / 1e6)


class UploadProbeServer:
    """A listener's handler for PURPOSE. It refuses probes while `busy()` is true, and limits the
    probes per peer as `ProbeServer` does. It counts what arrives within `probe_s`."""

    def __init__(self, busy: Callable[[], bool], probe_s: float = PROBE_S) -> None:
        self._busy = busy
        self._probe_s = probe_s
        self._lock = threading.Lock()
        self._served = Allowance(1, 1 / PEER_AGAIN_S)

    def __call__(self, sock: SecureSocket, hello: Mapping[str, object]) -> None:
        """Serve one probe. Raises PeerError if the connection ends early, RemoteProtocolError if
        the request or a frame is malformed."""
        sock.set_deadline(3 * self._probe_s)
        offered, asked = wanted_bytes(sock), time.monotonic()
        if not self._may(sock.peer):
            sock.send_all(b"\0")
            return
        sock.send_all(b"\1")
        came = [(time.monotonic(), 0)]
        is_over = False
        while not is_over and came[-1][0] < came[0][0] + self._probe_s:
            count = len(sock.receive_frame(SLICE_BYTES))
            is_over = not count
            if count:
                came.append((time.monotonic(), _added(sock, came[-1][1], count, offered)))
        found = measured(asked, came)
        told = {"bytes": found.count_bytes, "microseconds": max(int(found.seconds * 1e6), 1)}
        sock.send_frame(pack(told))
        # Closing a connection with unread bytes could destroy the reply. So read the rest.
        total = came[-1][1]
        with suppress(PeerError):
            while not is_over:
                count = len(sock.receive_frame(SLICE_BYTES))
                total = _added(sock, total, count, offered)
                is_over = not count

    def _may(self, peer: PeerId) -> bool:
        with self._lock:
            return not self._busy() and self._served.consume(peer, 1, time.monotonic())


def _added(sock: SecureSocket, total: int, count: int, offered: int) -> int:
    if total + count > offered:
        raise RemoteProtocolError("a probe sends more than it offered", peer=sock.peer)
    return total + count
