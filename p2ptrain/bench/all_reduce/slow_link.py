"""A slow link: a relay that forwards bytes at a limited rate.

Peers dial the relay instead of the listener at one end. It forwards encrypted bytes unchanged.
Waiting bytes fill its small socket buffers and so slow the sender down, as on a slow path. The
relay does not add delay or lose data.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

BUFFER_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024


class SlowLink:
    """Listens at `address`, which callers use instead of `target`. `bytes_per_s` is the limit in
    each direction for all connections together."""

    def __init__(self, target: tuple[str, int], bytes_per_s: float) -> None:
        self._target = target
        self._ways = (_LinkThrottle(bytes_per_s), _LinkThrottle(bytes_per_s))
        self._listener = socket.create_server((target[0], 0))
        # Accepted sockets inherit this buffer size. Set later, it would not limit TCP's window.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def __enter__(self) -> SlowLink:
        self._start(self._accept_all)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _start(self, body: object, *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept_all(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(near.family)
                self._open += [near, far]
                for each in (near, far):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
                far.connect(self._target)
                self._start(_forward, near, far, self._ways[0])
                self._start(_forward, far, near, self._ways[1])


class _LinkThrottle:
    """Decides when the next bytes of one direction may be sent. Thread-safe."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + count / self._bytes_per_s
            wait_s = self._free_at - now
        time.sleep(wait_s)


def _forward(source: socket.socket, sink: socket.socket, pace: _LinkThrottle) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            pace.wait(len(piece))
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
