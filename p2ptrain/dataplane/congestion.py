"""The congestion control of our sockets: BBR if the kernel has it and permits it.

On long paths, some packets are lost without congestion. Cubic and Reno treat every loss as
congestion and reduce their rate; BBR follows the rate at which data arrives. A kernel may lack BBR,
may have it in a module that is not loaded, or may permit it only to root. Then the system's default
is used, and `status` says so.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

WANTED = "bbr"
NAME_BYTES_MAX = 16
"""Maximum length of the name of a congestion control: TCP_CA_NAME_MAX of Linux."""

OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)
"""The socket option that sets the congestion control; None on systems without it, such as macOS."""


class TcpSocket(Protocol):
    """The methods of a TCP socket that this module uses. Tests replace the socket."""

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        """Set a socket option. Raises OSError."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Return a socket option. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Congestion:
    """The name of a socket's congestion control; "" if it is unknown. `refusal` says why the socket
    does not use BBR; it is "" if the socket does."""

    control: str
    refusal: str = ""

    @property
    def words(self) -> str:
        """A phrase for users that names the congestion control and, if it is not BBR, says why."""
        if not self.refusal:
            return f"congestion control {self.control}"
        used = self.control or "chosen by the system"
        return f"congestion control {used}; {WANTED} is not available: {self.refusal}"


def prefer_bbr(sock: TcpSocket, option: int | None = OPTION, wanted: str = WANTED) -> Congestion:
    """Request the congestion control `wanted` for `sock`. If the system refuses, keep its default.
    Return what the socket uses now."""
    if option is None:
        return Congestion("", "this system does not let programs choose it")
    refusal = ""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, option, wanted.encode())
    except OSError as exc:
        refusal = exc.strerror or type(exc).__name__
    control = ""
    with suppress(OSError):
        told = sock.getsockopt(socket.IPPROTO_TCP, option, NAME_BYTES_MAX)
        control = told.partition(b"\0")[0].decode("ascii", "replace")
    if control != wanted and not refusal:
        refusal = "the system keeps its own choice"
    return Congestion(control, refusal)


def probe() -> Congestion:
    """Return the congestion control that our sockets get, as reported by a new socket that is never
    connected."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        return prefer_bbr(sock)
