"""Which congestion control our sockets run under: BBR where the kernel has it and lets us.

On long paths some packets are lost that no queue dropped. Cubic and Reno take each for congestion
and halve their rate; BBR goes by what arrives. A kernel may lack it, have it as a module that is
not loaded, or allow it to root only: then the system's default does, and status says so.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

WANTED = "bbr"
NAME_BYTES_MAX = 16
"""TCP_CA_NAME_MAX of Linux."""

OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)
"""None where the system has no such choice, as on macOS."""


class Socket(Protocol):
    """What of a TCP socket is used here."""

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None:
        """Raises OSError."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Raises OSError."""


@dataclass(frozen=True, slots=True)
class Congestion:
    """What a socket runs under; empty where the system does not tell. `refusal`: why not BBR."""

    control: str
    refusal: str = ""

    @property
    def words(self) -> str:
        """For a person who asks how this node sends."""
        if not self.refusal:
            return f"congestion control {self.control}"
        used = self.control or "the system's"
        return f"congestion control {used}; {WANTED} cannot be had: {self.refusal}"


def prefer_bbr(sock: Socket, option: int | None = OPTION) -> Congestion:
    """Ask for BBR, and go on with what there is if it is refused."""
    if option is None:
        return Congestion("", "this system does not let a program choose")
    refusal = ""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, option, WANTED.encode())
    except OSError as exc:
        refusal = exc.strerror or type(exc).__name__
    control = ""
    with suppress(OSError):
        told = sock.getsockopt(socket.IPPROTO_TCP, option, NAME_BYTES_MAX)
        control = told.partition(b"\0")[0].decode("ascii", "replace")
    if control != WANTED and not refusal:
        refusal = "the system keeps its own"
    return Congestion(control, refusal)


def probe() -> Congestion:
    """What a socket of this process gets, found out on one that goes nowhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        return prefer_bbr(sock)
