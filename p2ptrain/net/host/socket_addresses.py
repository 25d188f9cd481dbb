"""The addresses at both ends of a connection.

libp2p 0.8.1 does not report the address of a peer that is connected by IPv6: the address of such a
socket has four parts, and libp2p expects two. Our limits for each address group depend on it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from libp2p.abc import INetConn
from libp2p.io.trio import TrioTCPStream

_PARTS = ("secured_conn", "conn", "read_writer", "read_write_closer", "stream", "stream", "socket")
"""The attributes that lead from a multiplexed connection to its socket."""


def report_ipv6_addresses() -> None:
    """Apply this to every connection of this process from now on."""
    setattr(TrioTCPStream, TrioTCPStream.get_remote_address.__name__, _remote_address)


def _remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """Replace libp2p's own function. The address is kept, because a closed socket has none."""
    if stream._cached_remote_address is None:
        with suppress(OSError):
            host, port = stream.stream.socket.getpeername()[:2]
            stream._cached_remote_address = str(host), int(port)
    return stream._cached_remote_address


def socket_of(connection: INetConn) -> Any:
    """Return the socket of `connection`, a trio socket; None if it is not known."""
    part: Any = connection.muxed_conn
    for name in _PARTS:
        part = getattr(part, name, None)
    return part


def local_host_of(connection: INetConn) -> str:
    """Return the IP address of this machine that `connection` uses; "" if it is not known, for
    example because the connection has ended."""
    sock = socket_of(connection)
    try:
        return "" if sock is None else str(sock.getsockname()[0])
    except OSError:
        return ""
