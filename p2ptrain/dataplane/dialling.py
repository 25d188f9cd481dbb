"""A dial under way, as another thread may want to end it.

A thread that dials blocks in `connect` or in the handshake, for as long as its deadline lets it:
the peer may be frozen, or its cable cut. Whoever learns so earlier gives the dial up.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Dialling:
    """Give it to `dial`, which then raises soon after `give_up`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._over = False

    def begin(self, sock: socket.socket) -> None:
        """This is the socket, about to be connected. Raises OSError: it was given up before."""
        with self._lock:
            if self._over:
                raise ConnectionAbortedError("the dial was given up")
            self._sock = sock

    def give_up(self) -> None:
        with self._lock:
            self._over = True
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
