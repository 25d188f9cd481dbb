"""The reason why an attempt failed. All threads of a reduce share one verdict: the first reason.

Later reasons are ignored, because the consequences of a fault, such as closed connections, look
like faults of other peers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from p2ptrain.ids import PeerId


@dataclass(frozen=True, slots=True)
class Blame:
    """The peers to leave out of the next attempt, and the reason as text. `suspects` is empty if
    nobody is at fault.

    `own` means that this peer found the fault in itself. If other peers accuse this peer, it
    forwards the accusation to its neighbours but does not report itself to the members, since the
    others may be wrong. `heard` means that a neighbour reported the fault and this peer did not
    notice it itself. Then this peer tells the members that the attempt failed, but accuses nobody.
    """

    suspects: tuple[PeerId, ...]
    reason: str
    own: bool = False
    heard: bool = False

    def reported_by(self, me: PeerId) -> tuple[PeerId, ...]:
        """Return the suspects that this peer, `me`, reports to the members."""
        return tuple(peer for peer in self.suspects if self.own or peer != me)


class Blamed(Exception):
    """Carries a Blame from where a fault was noticed to the top of the thread."""

    def __init__(self, blame: Blame) -> None:
        super().__init__(blame.reason)
        self.blame = blame


class SharedVerdict:
    """Holds the reason why the attempt failed, in `blame`: None until there is one. Thread-safe."""

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
        """Make `blame` the verdict unless there already is one. Return whether there was none."""
        with self._lock:
            if self._blame is not None:
                return False
            self._blame = blame
            self._settled.set()
        self._on_settled()
        return True
