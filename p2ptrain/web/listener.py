"""Serve an application on a socket, with a bounded number of connections, and disconnect clients
that do not read.

anycorn (the HTTP server) accepts any number of connections, and waits for ever until a client reads
what was sent to it. So this module accepts the connections itself, and gives anycorn a stream whose
`send` has a deadline for each piece.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc
import trio
from anycorn.config import Config
from anycorn.tcp_server import tcp_server_handler
from anycorn.utils import wrap_app
from anycorn.worker_context import WorkerContext
from starlette.types import ASGIApp

CONNECTIONS_MAX = 96
"""Maximum number of connections. A browser opens at most six to one server."""

SEND_S = 10.0
PIECE_BYTES = 16 * 1024
"""Each piece of an answer must be accepted within `SEND_S`. A client that reads less than 1.6 kB/s
is disconnected."""

BUFFER_BYTES = 64 * 1024
"""Bytes that the kernel keeps for one client."""

IDLE_S = 15.0
"""Seconds for which a connection may be idle, or may take to send the headers of a request."""

HEADERS_BYTES_MAX = 16 * 1024
BACKLOG = 64
PORTS_TRIED = 100
"""Number of ports that are tried: on one machine, there may be many nodes."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the first free port from `port` on, of 100 ports. Port 0
    stands for any free port. Raises OSError: none of them is free."""
    for tried in range(port, min(port + PORTS_TRIED, 65536)):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            sock.bind((host, tried))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            if tried == min(port + PORTS_TRIED, 65536) - 1:
                raise
        else:
            return sock
    raise OSError(f"{port} is not a port")


class _ImpatientStream:
    """A connection that is closed when the client does not read."""

    def __init__(self, stream: anyio.abc.SocketStream, send_s: float) -> None:
        self._stream = stream
        self._send_s = send_s
        self.extra = stream.extra
        self.receive = stream.receive
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            with trio.move_on_after(self._send_s) as scope:
                await self._stream.send(data[start : start + PIECE_BYTES])
            if scope.cancelled_caught:
                await anyio.aclose_forcefully(self._stream)
                raise anyio.BrokenResourceError


async def serve(
    app: ASGIApp,
    sock: socket.socket,
    *,
    connections_max: int = CONNECTIONS_MAX,
    send_s: float = SEND_S,
) -> None:
    """Serve `app` on the listening socket `sock` until cancelled."""
    handle = _handler(app)
    connected = 0

    async def bounded(stream: anyio.abc.SocketStream) -> None:
        nonlocal connected
        if connected >= connections_max:
            await anyio.aclose_forcefully(stream)
            return
        connected += 1
        try:
            await handle(_ImpatientStream(stream, send_s))
        finally:
            connected -= 1

    async with await anyio.abc.SocketListener.from_socket(sock) as listener:
        await listener.serve(bounded)


def _handler(app: ASGIApp) -> Callable[..., Any]:
    """Return the function with which anycorn serves one connection."""
    config = Config()
    config.keep_alive_timeout = IDLE_S
    config.h11_max_incomplete_size = HEADERS_BYTES_MAX
    config.h2_max_concurrent_streams = 4
    config.include_server_header = False
    config.loglevel = "ERROR"
    wrapped: Any = wrap_app(app, 0, "asgi")  # type: ignore[arg-type]  # the same ASGI, other types
    return tcp_server_handler(wrapped, config, WorkerContext(None), {})
