"""The node's end of its connection to the harness. It reports the points that the node passes, and
stops the node at a chosen one.

    harness ──arm POINT ROLE──► node       stop when you reach this point in this role
    harness ◄──passed POINT ROLE── node    sent once for each point and role
    harness ◄──at POINT── node             the node is stopped here
    harness ──go──► node                   continue

The thread that reaches the point blocks. At nearly all points, this thread also runs the rest of
the node. `go` also disarms the gate, so that nodes that have not reached the point do not stop
later.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tests.chaos.harness.points import Point, Role, Side

Leads = Callable[[], bool]
"""A function that returns whether this node leads the round that a point is about. It is called at
the point.
"""


class Gate:
    """Stops this node on demand. `passing` wraps an action.

    The harness can close the connection at any time. After that, the node does not stop at any
    point.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._armed: tuple[Point, Role] | None = None
        self._go = threading.Event()
        self._passed: set[tuple[Point, Role]] = set()
        # This is opened here because the caller can close `line` before the thread has started.
        orders = line.makefile("r")
        threading.Thread(
            target=self._listen, args=(orders,), name="chaos-line", daemon=True
        ).start()

    @property
    def armed(self) -> tuple[Point, Role] | None:
        """The point at which this node will stop, and the role that the node must have there."""
        with self._lock:
            return self._armed

    @contextmanager
    def passing(self, deed: str, leads: Leads) -> Iterator[None]:
        """Wrap a block that performs the action `deed`. The `after:` point is passed only if the
        block succeeds.
        """
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
                raise ValueError(f"the harness sent an unknown order: {words}")
