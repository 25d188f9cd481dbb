"""A dial in progress that another thread can end.

A dialling thread blocks in `connect` or in the handshake until its deadline, for example if the
peer is frozen or its cable is cut. Another thread that learns this earlier can end the dial.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class DialHandle:
    """Pass this handle to `dial`; after `give_up`, that call soon raises an error. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._branches: list[DialHandle] = []
        self._over = False

    def register(self, sock: socket.socket) -> None:
        """Register the socket that is about to be connected. Raises OSError after `give_up`."""
        with self._lock:
            if self._over:
                raise ConnectionAbortedError("this node gave up dialling")
            self._sock = sock

    def release(self) -> bool:
        """Forget the socket, because it is in use from now on and `give_up` must not end it. Return
        False if `give_up` was called before."""
        with self._lock:
            self._sock = None
            for branch in self._branches:
                branch.release()
            return not self._over

    @property
    def is_over(self) -> bool:
        """Whether `give_up` was called."""
        return self._over

    def branch(self) -> DialHandle:
        """Return a handle for one of several simultaneous tries. It can be given up alone, and is
        given up together with this handle."""
        branch = DialHandle()
        with self._lock:
            self._branches.append(branch)
            branch._over = self._over
        return branch

    def give_up(self) -> None:
        with self._lock:
            self._over = True
            for branch in self._branches:
                branch.give_up()
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
