"""Bind the listening socket, and explain to the user why this fails."""

from __future__ import annotations

import errno
import socket

from p2ptrain.errors import ConfigError


def try_listening(host: str, port: int) -> None:
    """Check in advance that a listener can bind to `host`:`port`. Raises ConfigError (PORT-IN-USE,
    ADDR-LISTEN)."""
    bind(host, port).close()


def bind(host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that listens at `host`:`port`. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        raise _cannot_listen(host, port, exc) from exc
    return sock


def _cannot_listen(host: str, port: int, exc: OSError) -> ConfigError:
    where, why = f"{host}:{port}", exc.strerror or str(exc)
    if exc.errno == errno.EADDRINUSE:
        return ConfigError(
            f"the data port {port} is in use",
            code="PORT-IN-USE",
            evidence=[f"listening on {where}: {why}"],
            likely="another program, perhaps another node, is listening on it",
            do="choose another port with --data-listen, or port 0 for any free one",
        )
    return ConfigError(
        f"the data plane cannot listen on {where}",
        code="ADDR-LISTEN",
        evidence=[f"listening on {where}: {why}"],
        likely="the address is not one of this machine's, or the port is below 1024",
        do="choose another with --data-listen; 0.0.0.0:0 means all addresses and any free port",
    )
