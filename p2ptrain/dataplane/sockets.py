"""A connection to one known peer, with a deadline on every operation.

The ring (which averages) and the swarm (which fetches) run in threads that block in `send_all` and
`receive_into`, without the GIL. If another thread calls `shutdown`, the blocked call raises, which
ends the thread. `SecureSocket` is the interface that ring and swarm use. `PeerSocket` implements
the interface over TLS or, for tests, over a plain socket pair.

One thread uses a socket at a time, because OpenSSL cannot read and write one connection from two
threads at once. Only `shutdown`, `set_deadline`, `peer` and `ended` may be used from any thread.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.errors import (
    LocalProtocolError,
    PeerError,
    PeerLost,
    PeerTooSlow,
    RemoteProtocolError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from p2ptrain.ids import PeerId

FRAME_BYTES_MAX = 1 << 20
"""Default limit of a frame. Frames hold messages about bulk data, not the data."""

_LENGTH = struct.Struct(">I")
_SEND_BYTES = 1 << 20
"""Bytes per OpenSSL call: enough to keep calls rare, but few enough to check the deadline often."""
_DEADLINE_SLACK_S = 0.1
"""Tolerated error of a socket's timeout, in seconds. Setting the timeout takes a system call, so it
is not set again for a smaller difference."""


class ShutDownHere(PeerLost):
    """This node shut down the connection, so the peer is not at fault."""

    default_code = "SHUT-DOWN"


class RelayFault(PeerError):
    """A connection through a relay failed. Its `peer` is the relay. The peer at the other end may
    be innocent, so do not blame it: try another relay."""

    default_code = "RELAY-FAULT"


class RelayLost(RelayFault, PeerLost):
    """The connection ended or its bytes were changed. The relay can cause both."""

    default_code = "RELAY-LOST"


class RelayTooSlow(RelayFault, PeerTooSlow):
    """The relay, or the peer behind it, did not send or accept bytes in time."""

    default_code = "RELAY-TOO-SLOW"


class SecureSocket(Protocol):
    """A stream of bytes to and from `peer`, whose identity has been proven."""

    @property
    def peer(self) -> PeerId: ...

    def set_deadline(self, seconds_from_now: float) -> None:
        """Require all later calls together to end within `seconds_from_now`."""

    def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`. Raises PeerLost, PeerTooSlow."""

    def receive_into(self, view: bytearray | memoryview) -> None:
        """Fill all of `view`. Raises PeerLost, PeerTooSlow."""

    def send_frame(self, payload: bytes | bytearray | memoryview) -> None:
        """Send one frame. Raises PeerLost, PeerTooSlow."""

    def receive_frame(self, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        """Receive one frame.

        Raises PeerLost, PeerTooSlow, and RemoteProtocolError if a longer frame is announced.
        """

    def send_some(self, data: memoryview) -> int:
        """Send without blocking; return the number of bytes sent. If it is 0, try again with the
        same data when the socket is writable. Raises PeerLost."""

    def receive_some(self, view: memoryview) -> int:
        """Receive without blocking; return the number of bytes received. If it is 0, try again when
        the socket is readable. Raises PeerLost."""

    def finish_sending(self) -> None:
        """Tell the peer that we will not send more. Receiving is still possible."""

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""

    def shutdown(self) -> None:
        """Wake a thread that is blocked in a call; later calls raise ShutDownHere. Any thread may
        call this."""

    def close(self) -> None:
        """Shut down and release the descriptor."""


class PeerSocket:
    """The SecureSocket over an operating-system socket, TLS or plain.

    The first operation that fails ends the connection: the peer may have received only a part of a
    message, and could not interpret what follows.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        peer: PeerId,
        *,
        deadline_s: float,
        via: PeerId | None = None,
    ) -> None:
        self._sock = sock
        self._in_records = isinstance(sock, TlsSocket)
        self.peer = peer
        self.via = via
        """The relay that the connection goes through; None if it is a direct connection. Without
        encryption, the relay can change the bytes."""
        self._deadline = time.monotonic() + deadline_s
        self._timeout_s = -1.0
        self._in_use = threading.Lock()
        self._failure = ""
        self.ended = threading.Event()
        """Set by `shutdown` or `close`, when this side no longer uses the connection."""

    @property
    def is_authentic(self) -> bool:
        """Whether the peer is to blame for bytes that make no sense. Without encryption, a relay
        may have changed them."""
        return self.via is None or self._in_records

    @property
    def has_unread(self) -> bool:
        """Whether bytes have been received that were not read yet."""
        return isinstance(self._sock, TlsSocket) and self._sock.has_unread

    def set_deadline(self, seconds_from_now: float) -> None:
        self._deadline = time.monotonic() + seconds_from_now

    def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._operation("send"):
            self._send(memoryview(data).cast("B"))

    def receive_into(self, view: bytearray | memoryview) -> None:
        with self._operation("receive"):
            self._receive(memoryview(view).cast("B"))

    def send_frame(self, payload: bytes | bytearray | memoryview) -> None:
        header = _LENGTH.pack(len(payload))
        with self._operation("send"):
            if len(payload) <= 1 << 14:
                self._send(memoryview(header + bytes(payload)))
            else:
                self._send(memoryview(header))
                self._send(memoryview(payload).cast("B"))

    def receive_frame(self, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        with self._operation("receive"):
            header = bytearray(_LENGTH.size)
            self._receive(memoryview(header))
            (length,) = _LENGTH.unpack(header)
            if length > bytes_max:
                self._failure = "it announced a frame that was too long"
                if not self.is_authentic:
                    raise self._lost("receive", self._failure)
                raise RemoteProtocolError(
                    f"it announced a frame of {length} bytes, more than the limit of {bytes_max}",
                    peer=self.peer,
                )
            frame = bytearray(length)
            self._receive(memoryview(frame))
            return bytes(frame)

    def send_some(self, data: memoryview) -> int:
        with self._operation("send"):
            self._never_block()
            try:
                return self._sock.send(data)
            except BlockingIOError:
                return 0

    def receive_some(self, view: memoryview) -> int:
        received = 0
        with self._operation("receive"):
            self._never_block()
            while received < len(view):
                try:
                    count = self._sock.recv_into(view[received:])
                except BlockingIOError:
                    break
                if count == 0 and received == 0:
                    raise EOFError
                received += count
                if count == 0 or not self._in_records:
                    break  # TLS returns one record at a time; a plain socket returns all it has
        return received

    def finish_sending(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def leave_encryption(self) -> None:
        """Continue without TLS, for bulk data on a private network, now that identities are
        proven."""
        assert isinstance(self._sock, TlsSocket)
        self._sock.leave_encryption()
        self._in_records = False

    def take_clear(self) -> tuple[socket.socket, bytes]:
        """Leave TLS for good. Return the socket, and the plain bytes that were already read from
        it. Afterwards this object is closed. Raises PeerLost."""
        assert isinstance(self._sock, TlsSocket)
        with self._operation("leaving TLS"):
            if self._in_records:
                self.leave_encryption()
            taken = self._sock.take_clear()
        self.ended.set()
        return taken

    def lend_descriptor(self) -> int:
        """Leave TLS for good, and return the non-blocking descriptor. The caller moves bytes with
        it until it calls `close`. Raises PeerLost; RemoteProtocolError if the peer has sent bytes
        too early."""
        assert isinstance(self._sock, TlsSocket)
        with self._operation("leaving TLS"):
            if self._in_records:
                self.leave_encryption()
            if self._sock.has_ahead:
                raise RemoteProtocolError("it sent bytes before our answer", peer=self.peer)
            self._never_block()
            return self._sock.fileno()

    def remote_address(self) -> tuple[str, int]:
        """Return the host and port from which the peer seems to be connected. Raises PeerLost if
        the connection has ended."""
        try:
            host, port = self._sock.getpeername()[:2]
        except (OSError, ValueError) as exc:
            raise self._lost("reading its address", str(exc)) from exc
        return str(host), int(port)

    def fileno(self) -> int:
        return self._sock.fileno()

    def shutdown(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wake a thread that is blocked in a call, wait until it has left, and close the socket."""
        self.shutdown()
        with self._in_use:
            self._sock.close()

    @contextmanager
    def _operation(self, doing: str) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            if self.ended.is_set():
                raise self._lost(doing, "")
            raise LocalProtocolError(f"two threads use the same connection to {self.peer} at once")
        try:
            if self.ended.is_set() or self._failure:
                raise self._lost(doing, self._failure)
            yield
        except TimeoutError as exc:
            self._fail("its deadline passed")
            if self.ended.is_set():
                raise self._lost(doing, "") from exc
            if self.via is not None:
                raise RelayTooSlow(f"{doing}: {self._failure}", peer=self.via) from exc
            raise PeerTooSlow(f"{doing}: {self._failure}", peer=self.peer) from exc
        except (OSError, EOFError) as exc:
            reason = _reason_of(exc)
            self._fail(reason)
            raise self._lost(doing, reason) from exc
        finally:
            self._in_use.release()

    def _fail(self, reason: str) -> None:
        """End the connection for both sides, and keep the reason. Only `close` frees the
        descriptor."""
        self._failure = reason
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _lost(self, doing: str, reason: str) -> PeerLost:
        if self.ended.is_set():
            return ShutDownHere(f"{doing}: the connection was shut down here", peer=self.peer)
        if self.via is not None:
            return RelayLost(f"{doing}: {reason}", peer=self.via)
        return PeerLost(f"{doing}: {reason}", peer=self.peer)

    def _send(self, data: memoryview) -> None:
        sent = 0
        while sent < len(data):
            self._allow_remaining_time()
            sent += self._sock.send(data[sent : sent + _SEND_BYTES])

    def _receive(self, view: memoryview) -> None:
        received = 0
        while received < len(view):
            self._allow_remaining_time()
            count = self._sock.recv_into(view[received:])
            if count == 0:
                raise EOFError
            received += count

    def _never_block(self) -> None:
        if self._timeout_s != 0:
            self._timeout_s = 0.0
            self._sock.settimeout(0.0)

    def _allow_remaining_time(self) -> None:
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        if not remaining_s <= self._timeout_s <= remaining_s + _DEADLINE_SLACK_S:
            self._timeout_s = remaining_s
            self._sock.settimeout(remaining_s)


def _reason_of(exc: OSError | EOFError) -> str:
    if isinstance(exc, EOFError):
        return "the peer closed the connection"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {exc.reason or exc.strerror or exc}"
    return exc.strerror or type(exc).__name__


def plain_pair(
    left: PeerId, right: PeerId, *, deadline_s: float = 10.0
) -> tuple[PeerSocket, PeerSocket]:
    """Return two connected sockets without TLS, for tests: first that of `left`, whose peer is
    `right`, then that of `right`, whose peer is `left`."""
    at_left, at_right = socket.socketpair()
    return (
        PeerSocket(at_left, right, deadline_s=deadline_s),
        PeerSocket(at_right, left, deadline_s=deadline_s),
    )
