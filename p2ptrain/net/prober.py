"""Find out why an address does not answer, before libp2p is asked to dial it.

libp2p reports a refused connection, a missing name, a wrong peer and a web server with the same
text, and has no deadline for a silent port. So this module first dials by itself, step by step:
DNS, TCP, then the first bytes. It does not find out which peer answers, only whether the program at
the address speaks libp2p.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

import trio

from p2ptrain.errors import readable
from p2ptrain.net.addresses import Address
from p2ptrain.net.faults import DialFailed
from p2ptrain.net.names import Resolver

_BANNER = b"\x13/multistream/1.0.0\n"
"""The first bytes of every libp2p host."""


async def probe(
    address: Address,
    resolver: Resolver,
    *,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return the IP address at which `address` speaks libp2p. `clock` returns seconds.

    Raises:
        DialFailed: NET-DNS, NET-REFUSED, NET-TIMEOUT, NET-NO-ROUTE, NET-SILENT, NET-RESET,
            NET-NOT-LIBP2P.
    """
    ends = trio.current_time() + deadline_s
    candidates = await resolver.resolve(address, ends)
    for number, host in enumerate(candidates, start=1):
        left = len(candidates) - number + 1
        share_s = max(ends - trio.current_time(), 0) / left
        try:
            await _probe_host(address, host, share_s, clock)
        except DialFailed:
            if left == 1:
                raise
        else:
            return host
    raise AssertionError("a name resolves to at least one address, or NET-DNS was raised")


async def _probe_host(
    address: Address, host: str, deadline_s: float, clock: Callable[[], float]
) -> None:
    started = clock()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with trio.socket.socket(family, socket.SOCK_STREAM) as sock:
        with trio.move_on_after(deadline_s) as scope:
            try:
                await sock.connect((host, address.port))
            except OSError as exc:
                raise _connect_failed(address, exc, clock() - started) from exc
        if scope.cancelled_caught:
            raise DialFailed(address, "NET-TIMEOUT", f"no answer for {deadline_s:.1f} s")
        # On a busy machine, the connection may succeed although no time is left to read.
        left_s = max(0.0, deadline_s - (clock() - started))
        await _read_banner(address, sock, left_s)


def _connect_failed(address: Address, exc: OSError, after_s: float) -> DialFailed:
    after = f"after {after_s * 1000:.0f} ms"
    if isinstance(exc, ConnectionRefusedError):
        words = f"refused {after}: the host is up, but no program listens on port {address.port}"
        return DialFailed(address, "NET-REFUSED", words)
    if isinstance(exc, ConnectionResetError):
        return DialFailed(address, "NET-RESET", f"connection reset {after}")
    if exc.errno == errno.ETIMEDOUT:
        return DialFailed(address, "NET-TIMEOUT", f"no answer {after}")
    return DialFailed(address, "NET-NO-ROUTE", f"{exc.strerror or exc} {after}")


async def _read_banner(address: Address, sock: trio.socket.SocketType, deadline_s: float) -> None:
    heard = b""
    with trio.move_on_after(deadline_s) as scope:
        try:
            await sock.send(_BANNER)
            while len(heard) < len(_BANNER) and _BANNER.startswith(heard):
                piece = await sock.recv(len(_BANNER) - len(heard))
                if not piece:
                    break
                heard += piece
        except OSError as exc:
            words = f"it closed the connection ({exc.strerror or exc})"
            raise DialFailed(address, "NET-RESET", words) from exc
    if heard == _BANNER:
        return
    if not _BANNER.startswith(heard):
        words = f"the program there does not speak libp2p: it answered {readable(heard)}"
        raise DialFailed(address, "NET-NOT-LIBP2P", words)
    if scope.cancelled_caught:
        words = f"connected, but it sent no data for {deadline_s:.1f} s"
        raise DialFailed(address, "NET-SILENT", words)
    raise DialFailed(address, "NET-RESET", "it closed the connection without sending anything")
