"""A limited number of slots for unknown peers, shared fairly between the sources of these peers.

A source is something that an attacker cannot easily multiply, such as an IP address. This module
does not know what the slots are used for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class StrangerSlots:
    """When all slots are taken, the source with the most slots loses its oldest slot. So a new slot
    is always available, and a flood from one source takes slots only from that source. If several
    sources have the most slots, the oldest of all their slots is lost. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._taken: dict[object, tuple[Hashable, Callable[[], None]]] = {}
        """The source of each holder, and the function to call if its slot is lost; oldest first."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, holder: object, source: Hashable, lose: Callable[[], None]) -> bool:
        """Give `holder` a slot until it releases the slot, or loses it. If the slot is lost, `lose`
        is called and must end the use of the slot. Return True if another holder lost its slot."""
        with self._lock:
            crowded = len(self._taken) >= self._count
            if crowded:
                self._take_one_away()
            self._taken[holder] = source, lose
        return crowded

    def release(self, holder: object) -> None:
        """Free the slot of `holder`, if it still has one."""
        with self._lock:
            self._taken.pop(holder, None)

    @contextmanager
    def taken(self, source: Hashable, lose: Callable[[], None]) -> Iterator[None]:
        """Hold a slot while the block lasts. If the slot is lost, `lose` must end the block."""
        holder = object()
        self.take(holder, source, lose)
        try:
            yield
        finally:
            self.release(holder)

    def take_all_away(self) -> None:
        """Let every holder lose its slot."""
        with self._lock:
            for _, lose in self._taken.values():
                lose()
            self._taken.clear()

    def _take_one_away(self) -> None:
        held = Counter(source for source, _ in self._taken.values())
        most = max(held.values())
        oldest = next(holder for holder, (source, _) in self._taken.items() if held[source] == most)
        self._taken.pop(oldest)[1]()
