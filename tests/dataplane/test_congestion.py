"""BBR is asked for, and what is used instead is told."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field

import pytest

from p2ptrain.dataplane import congestion
from p2ptrain.dataplane.congestion import Congestion, prefer_bbr, probe
from p2ptrain.dataplane.tls import tune

OPTION = 13
"""Linux's number; the kernel below is made of paper, and the same everywhere."""


@dataclass
class PaperSocket:
    """A kernel that lets us have some algorithms; `told` False: it does not say which it uses."""

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


def test_a_kernel_that_offers_bbr_gives_it() -> None:
    sock = PaperSocket(allowed=("cubic", "bbr"))
    found = prefer_bbr(sock, OPTION)
    assert (found, sock.asked) == (Congestion("bbr"), [b"bbr"])
    assert found.words == "congestion control bbr"


@pytest.mark.parametrize("refused", [errno.ENOENT, errno.EPERM])
def test_a_kernel_that_refuses_goes_on_with_its_own(refused: int) -> None:
    """It lacks BBR, or keeps it for root."""
    found = prefer_bbr(PaperSocket(refuses_with=refused), OPTION)
    assert found == Congestion("cubic", os.strerror(refused))
    assert found.words == (
        f"congestion control cubic; bbr is not available: {os.strerror(refused)}"
    )


def test_a_kernel_that_refuses_and_does_not_say_what_it_does_instead() -> None:
    found = prefer_bbr(PaperSocket(told=False), OPTION)
    assert found.words == (
        "congestion control the system's; bbr is not available: No such file or directory"
    )


def test_a_kernel_that_agrees_and_keeps_its_own_is_not_believed() -> None:
    class Deaf(PaperSocket):
        def setsockopt(self, level: int, option: int, value: bytes) -> None:
            pass

    assert prefer_bbr(Deaf(), OPTION) == Congestion("cubic", "the system keeps its own choice")


def test_a_system_without_the_choice_is_asked_nothing() -> None:
    sock = PaperSocket()
    found = prefer_bbr(sock, None)
    assert (found.control, sock.asked) == ("", [])
    assert "does not let programs choose" in found.words


def test_this_machines_sockets_get_what_the_probe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe()
    with socket.socket() as sock:
        assert tune(sock) == found
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    monkeypatch.setattr(congestion, "WANTED", "no-such-algorithm")
    with socket.socket() as sock:
        refused = tune(sock)
    assert refused.control != "no-such-algorithm"
    assert refused.refusal
