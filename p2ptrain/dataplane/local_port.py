"""A TCP port of this machine that several sockets use at once.

A NAT gives the connections from one inside address and port the same outside port, whoever they
call (most NATs do). So a stream observes its external address, calls the peer and takes the peer's
call from one local port. All these sockets set SO_REUSEADDR and SO_REUSEPORT.

This module also binds the listener's port, which belongs to one socket only.
"""

from __future__ import annotations

import errno
import socket

from p2ptrain.errors import ConfigError, TryLater


class LocalPort:
    """A free port at `host`, an IP address of this machine or 0.0.0.0 or ::. The port is reserved
    until `close`. Use it as a context manager.

    Raises (on construction):
        TryLater: this machine has no free port or descriptor, or does not have this address.
    """

    def __init__(self, host: str = "0.0.0.0") -> None:
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._address = host, 0
        try:
            # No other program is given this port as a free one while a socket is bound to it.
            self._reserving = self.new_socket()
        except OSError as exc:
            raise TryLater(f"no port is free at {host}: {exc.strerror or exc}") from exc
        bound_host, port = self._reserving.getsockname()[:2]
        self._address = str(bound_host), int(port)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def new_socket(self) -> socket.socket:
        """Return one more TCP socket that is bound to this port. Raises OSError."""
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(self._address)
        except OSError:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        self._reserving.close()

    def __enter__(self) -> LocalPort:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def try_listening(host: str, port: int) -> None:
    """Check in advance that a listener can bind to `host`:`port`. Raises ConfigError (PORT-IN-USE,
    ADDR-LISTEN)."""
    listening_socket(host, port).close()


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host`:`port` and does not block. Raises ConfigError
    (PORT-IN-USE, ADDR-LISTEN)."""
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
