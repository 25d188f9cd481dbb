"""TLS over a socket, with many records per system call. This module replaces `ssl.SSLSocket`.

An SSLSocket makes one system call for each record of 16 KiB that it writes, and two for each record
that it reads. A TlsSocket keeps records in memory, and one system call moves all available records.
For bulk data, an SSLSocket takes a quarter more CPU time. OpenSSL still makes the handshake and the
records.

A TlsSocket raises the same errors as an SSLSocket, always an OSError. As with an SSLSocket, the
timeout covers a whole call, however many reads the call makes. Otherwise a peer that sends one byte
at a time would never be late. This module does not know peers.

On a private network `leave_encryption` ends TLS after it has proven the identities. The same
connection then carries plain bytes.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

RECORDS_BYTES = 1 << 18
"""Bytes received at once. Smaller buffers (64 and 128 KiB) were slower, and larger buffers were not
faster."""
HANDSHAKE_BYTES = 1 << 12
"""Bytes received at once during the handshake, when the peer may be anybody. A hundred strangers
with unfinished handshakes must not occupy a large buffer each."""

SEND_BYTES_MAX = 1 << 17
"""Maximum bytes that one `send` encrypts. It keeps them until the socket has accepted all."""

_scratch = threading.local()


class TlsSocket:
    """Owns `sock` and takes over its timeout. One thread uses it at a time, except for `shutdown`.

    Run `do_handshake` before anything else. `received` are bytes that were already read from
    `sock`.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server: bool,
        received: bytes = b"",
    ) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._incoming.write(received)
        self._outgoing = ssl.MemoryBIO()
        self._timeout_s = sock.gettimeout()
        self._ends: float | None = None
        """Monotonic time when the current call times out; None until it waits."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._pending = memoryview(b"")
        """Records that the socket has not accepted yet."""
        self._pending_of = 0
        """Number of the caller's bytes in the pending records."""
        self._clear = False
        self._ahead = memoryview(b"")
        """Plain bytes that arrived together with the last record."""

    def start_handshake(self) -> None:
        """Send the first message of a client's handshake, without waiting for the answer. Then run
        `do_handshake`. Raises OSError."""
        self._ends = None
        self._shaken()
        self._flush()

    def do_handshake(self) -> None:
        """Run the handshake. Raises OSError, including TimeoutError."""
        self._ends = None
        try:
            while not self._shaken():
                self._flush()
                if not self._fill_from(bytearray(HANDSHAKE_BYTES)):
                    raise ConnectionAbortedError("the peer closed the connection")
        finally:
            with suppress(OSError):  # if possible, tell the peer why the handshake failed
                self._flush()

    def send(self, data: memoryview) -> int:
        """Send up to SEND_BYTES_MAX of `data`; return how many bytes were sent. If this raises
        BlockingIOError, the socket has not accepted all of them: call `send` again with the same
        data."""
        if self._clear:
            return self._sock.send(data)
        if not self._pending:
            self._pending_of = self._tls.write(data[:SEND_BYTES_MAX])
        self._ends = None
        self._flush()
        return self._pending_of

    def recv_into(self, view: memoryview) -> int:
        """Receive decrypted bytes into `view`. Return their number, or 0 at the stream's end."""
        if self._clear:
            return self._receive_clear(view)
        self._ends = None
        received = 0
        while received < len(view):
            try:
                count = self._tls.read(len(view) - received, view[received:])
            except ssl.SSLWantReadError:
                if received:
                    break
                if not self._fill():
                    return 0
                continue
            except ssl.SSLZeroReturnError:
                break
            if not count:
                break
            received += int(count)
        return received

    def leave_encryption(self) -> None:
        """Stop encrypting. Both ends call this after the same message: the answer to the hello."""
        assert not self._pending
        self._clear = True
        self._sock.settimeout(self._timeout_s)
        self._ahead = memoryview(self._incoming.read())

    @property
    def has_unread(self) -> bool:
        """Whether bytes have been received that were not read yet. Then the descriptor need not be
        readable."""
        return bool(self._ahead or self._incoming.pending or self._tls.pending())

    @property
    def has_ahead(self) -> bool:
        """Whether plain bytes arrived before `leave_encryption` that have not been read yet."""
        return bool(self._ahead)

    def take_clear(self) -> tuple[socket.socket, bytes]:
        """Return the socket, and the plain bytes that were already read from it. This object no
        longer owns the socket. Call this after `leave_encryption`."""
        assert self._clear
        return socket.socket(fileno=self._sock.detach()), bytes(self._ahead)

    def certificate_der(self) -> bytes:
        """Return the peer's certificate; empty if there is none."""
        return self._tls.getpeercert(binary_form=True) or b""

    def version(self) -> str | None:
        return self._tls.version()

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds
        self._sock.settimeout(seconds)

    def fileno(self) -> int:
        return self._sock.fileno()

    def getpeername(self) -> Any:
        """Return the other end's address, in the form that `socket` uses for its family."""
        return self._sock.getpeername()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def _receive_clear(self, view: memoryview) -> int:
        if not self._ahead:
            return self._sock.recv_into(view)
        count = min(len(view), len(self._ahead))
        view[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        return count

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _flush(self) -> None:
        if not self._pending:
            self._pending = memoryview(self._outgoing.read())
        while self._pending:
            self._allow_remaining_time()
            self._pending = self._pending[self._sock.send(self._pending) :]

    def _fill(self) -> int:
        """Receive the available bytes through a buffer that the thread's sockets share."""
        if not hasattr(_scratch, "buffer"):
            _scratch.buffer = bytearray(RECORDS_BYTES)
        return self._fill_from(_scratch.buffer)

    def _fill_from(self, buffer: bytearray) -> int:
        """Receive the available bytes through `buffer`; return 0 at the end of the stream."""
        if self._outgoing.pending > RECORDS_BYTES:
            raise ConnectionAbortedError("the peer requests too many TLS answers")
        self._allow_remaining_time()
        count = self._sock.recv_into(buffer)
        if count:
            self._incoming.write(memoryview(buffer)[:count])
        return count

    def _allow_remaining_time(self) -> None:
        """Set the socket's timeout before each wait in a call. A non-blocking call tries the socket
        only once: a peer that sends empty records could otherwise keep the call busy for ever."""
        if self._timeout_s is None:
            return
        now = time.monotonic()
        if self._ends is None:
            self._ends = now + self._timeout_s
        elif now >= self._ends:
            raise TimeoutError("timed out") if self._timeout_s else BlockingIOError
        if self._timeout_s:
            self._sock.settimeout(self._ends - now)
