"""Bind the socket on which the data plane listens. A host of "" stands for all addresses of this
machine, of IPv4 and, if it has IPv6, of IPv6.
"""

from __future__ import annotations

import errno
import socket

from p2ptrain.errors import ConfigError


def try_listening(host: str, port: int) -> None:
    """Check in advance that a listener can bind to `host`:`port`. Raises ConfigError (PORT-IN-USE,
    ADDR-LISTEN)."""
    bind(host, port).close()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket that does not block. Raises ConfigError (PORT-IN-USE,
    ADDR-LISTEN)."""
    host = host or _every_address()
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc
    try:
        if host == "::":
            # Some systems are set to accept no IPv4 connections there.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        raise _cannot_listen(host, port, exc) from exc
    return sock


def _every_address() -> str:
    """Return the host that stands for all addresses of this machine. A socket that is bound to ::
    accepts IPv4 connections too."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"


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
        do="choose another with --data-listen; :0 means all addresses and any free port",
    )
