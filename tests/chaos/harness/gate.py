"""The node's end of the line to the harness: tell which points are passed, and stop at one.

    harness ──arm POINT ROLE──► node       stop there when you come by in that role
    harness ◄──passed POINT ROLE── node    once for each
    harness ◄──at POINT── node             here it stands, until
    harness ──go──► node

The thread that comes by stands still, which for most points is the one that everything else in the
node runs on. `go` also takes back what was armed, so that a node that was late goes on as well.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tests.chaos.harness.points import Point, Role, Side

Leads = Callable[[], bool]
"""Whether this node leads the round that a point is about; asked at the point."""


class Gate:
    """`passing` wraps a deed. The harness may hang up at any time: then nothing stops any more."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._armed: tuple[Point, Role] | None = None
        self._go = threading.Event()
        self._passed: set[tuple[Point, Role]] = set()
        # Opened here: whoever made us may close `line` before the thread has begun.
        orders = line.makefile("r")
        threading.Thread(
            target=self._listen, args=(orders,), name="chaos-line", daemon=True
        ).start()

    @property
    def armed(self) -> tuple[Point, Role] | None:
        """Where, and in which role, this node is to stop."""
        with self._lock:
            return self._armed

    @contextmanager
    def passing(self, deed: str, leads: Leads) -> Iterator[None]:
        """What is done in the block is `deed`; its `after:` is passed only if it succeeds."""
        self.come_by(Point(Side.BEFORE, deed), leads)
        yield
        self.come_by(Point(Side.AFTER, deed), leads)

    def come_by(self, point: Point, leads: Leads) -> None:
        role = Role.PROPOSER if leads() else Role.OTHER
        with self._lock:
            news = (point, role) not in self._passed
            self._passed.add((point, role))
            stops = self._armed == (point, role)
            if stops:
                self._armed = None
                self._go.clear()
        if news:
            self._say(f"passed {point} {role}")
        if stops:
            self._say(f"at {point}")
            self._go.wait()

    def _say(self, text: str) -> None:
        try:
            self._line.sendall(text.encode() + b"\n")
        except OSError:
            self._go.set()

    def _listen(self, orders: TextIO) -> None:
        with orders:
            for order in orders:
                self._obey(order.split())
        self._obey(["go"])

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["arm", point, role]:
                with self._lock:
                    self._armed = Point.parse(point), Role(role)
            case ["go"]:
                with self._lock:
                    self._armed = None
                    self._go.set()
            case _:
                raise ValueError(f"the harness says {words}")
