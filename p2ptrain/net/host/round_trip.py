"""The round-trip time of a connection, as this machine's kernel measures it.

The kernel times the acknowledgements of the bytes that a connection carries anyway, so a
measurement costs neither messages nor waiting. A busy process at the other end does not delay
acknowledgements. A peer can only make itself look farther away, and no decision depends on it.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

from libp2p.abc import INetConn

from p2ptrain.net.host.socket_addresses import socket_of

_MEASURED = struct.Struct("=68xI76xI")
"""The two fields of Linux's `struct tcp_info` that matter here, in microseconds: the smoothed time
(`tcpi_rtt`), and the shortest one of about the last five minutes (`tcpi_min_rtt`)."""

_UNKNOWN_US = 0xFFFFFFFF


def round_trip_s_of(connection: INetConn) -> float | None:
    """Return the shortest round-trip time of `connection` in about the last five minutes, in
    seconds; None if the kernel does not tell it, or the connection has ended.

    The smoothed time would often contain the 40 ms by which the other end delays acknowledgements.
    """
    sock: Any = socket_of(connection)
    if sock is None or not sys.platform.startswith("linux"):
        return None
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MEASURED.size)
    except OSError:
        return None
    return round_trip_s_in(told)


def round_trip_s_in(told: bytes) -> float | None:
    """Return the time in `told`, Linux's `struct tcp_info`. Kernels before 4.6 tell less."""
    if len(told) < _MEASURED.size:
        return None
    smoothed_us, shortest_us = _MEASURED.unpack_from(told)
    known = [each for each in (shortest_us, smoothed_us) if 0 < each < _UNKNOWN_US]
    return known[0] / 1e6 if known else None
