"""Why an attempt ended, settled once for all threads of a reduce: the first reason stands.

What follows a fault, such as connections that close everywhere, looks like faults of others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from p2ptrain.ids import PeerId


@dataclass(frozen=True, slots=True)
class Blame:
    """Whom to leave out of the next attempt (nobody, if nobody is at fault), and why, in words.

    `own`: it was found here that this peer itself is at fault. Others may name it as well, and be
    wrong; that is passed on, but it is no admission. `heard`: a neighbour said so, and nothing of
    it was seen here.
    """

    suspects: tuple[PeerId, ...]
    reason: str
    own: bool = False
    heard: bool = False

    def reported_by(self, me: PeerId) -> tuple[PeerId, ...]:
        """Whom `me` accuses to the members; itself only if it knows."""
        return tuple(peer for peer in self.suspects if self.own or peer != me)


class Blamed(Exception):
    """Carries a Blame from where a fault was seen up to the top of its thread."""

    def __init__(self, blame: Blame) -> None:
        super().__init__(blame.reason)
        self.blame = blame


class Verdict:
    """Empty while all is well. Thread-safe."""

    def __init__(self, on_settled: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._blame: Blame | None = None
        self._settled = threading.Event()
        self._on_settled = on_settled

    @property
    def blame(self) -> Blame | None:
        return self._blame

    @property
    def settled(self) -> bool:
        return self._settled.is_set()

    def wait(self, seconds: float) -> bool:
        return self._settled.wait(seconds)

    def settle(self, blame: Blame) -> bool:
        """Make `blame` the verdict if there is none yet; returns whether it became it."""
        with self._lock:
            if self._blame is not None:
                return False
            self._blame = blame
            self._settled.set()
        self._on_settled()
        return True
