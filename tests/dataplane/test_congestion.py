"""Sockets request BBR, and report the algorithm that the system uses instead."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field

import pytest

from p2ptrain.dataplane.congestion import Congestion, prefer_bbr, probe
from p2ptrain.dataplane.tls import tune

OPTION = 13
"""The option's number on Linux. The tests use a simulated kernel, so the number is fixed."""


@dataclass
class PaperSocket:
    """A fake socket of a kernel that allows the algorithms in `allowed`. If `told` is false, the
    kernel does not report which algorithm the socket uses."""

    allowed: tuple[str, ...] = ("cubic",)
    control: str = "cubic"
    refuses_with: int = errno.ENOENT
    told: bool = True
    asked: list[bytes] = field(default_factory=list)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, OPTION)
        self.asked.append(value)
        if value.decode() not in self.allowed:
            raise OSError(self.refuses_with, os.strerror(self.refuses_with))
        self.control = value.decode()

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, OPTION)
        if not self.told:
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
        return self.control.encode().ljust(length, b"\0")[:length]


def test_bbr_is_used_if_the_kernel_offers_it() -> None:
    sock = PaperSocket(allowed=("cubic", "bbr"))
    found = prefer_bbr(sock, OPTION)
    assert (found, sock.asked) == (Congestion("bbr"), [b"bbr"])
    assert found.words == "congestion control bbr"


@pytest.mark.parametrize("refused", [errno.ENOENT, errno.EPERM])
def test_refusal_of_bbr_keeps_the_systems_algorithm(refused: int) -> None:
    """ENOENT: the kernel does not have BBR. EPERM: the kernel reserves BBR for root."""
    found = prefer_bbr(PaperSocket(refuses_with=refused), OPTION)
    assert found == Congestion("cubic", os.strerror(refused))
    assert found.words == (
        f"congestion control cubic; bbr is not available: {os.strerror(refused)}"
    )


def test_refusal_is_reported_if_the_algorithm_is_unknown() -> None:
    found = prefer_bbr(PaperSocket(told=False), OPTION)
    assert found.words == (
        "congestion control chosen by the system; bbr is not available: No such file or directory"
    )


def test_kernel_that_ignores_the_request_is_detected() -> None:
    class Deaf(PaperSocket):
        def setsockopt(self, level: int, option: int, value: bytes) -> None:
            pass

    assert prefer_bbr(Deaf(), OPTION) == Congestion("cubic", "the system keeps its own choice")


def test_system_without_the_option_is_not_asked() -> None:
    sock = PaperSocket()
    found = prefer_bbr(sock, None)
    assert (found.control, sock.asked) == ("", [])
    assert "does not let programs choose" in found.words


def test_sockets_of_this_machine_get_the_algorithm_that_probe_reports() -> None:
    found = probe()
    with socket.socket() as sock:
        assert tune(sock) == found
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with socket.socket() as sock:
        refused = prefer_bbr(sock, wanted="no-such-algorithm")
    assert refused.control != "no-such-algorithm"
    assert refused.refusal
