"""A limited number of slots for unknown peers, shared fairly between the sources of these peers.

A source is something that an attacker cannot easily multiply, such as an IP address. This module
does not know what the slots are used for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class StrangerSlots:
    """When all slots are taken, the source with the most slots loses its oldest slot. So a new slot
    is always available, and a flood from one source takes slots only from that source. If several
    sources have the most slots, the oldest of all their slots is lost."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[object, tuple[Hashable, Callable[[], None]]] = {}

    @contextmanager
    def taken(self, source: Hashable, lose: Callable[[], None]) -> Iterator[None]:
        """Hold a slot while the block lasts. If the slot is lost, `lose` is called and must end the
        block."""
        if len(self._taken) >= self._count:
            self._take_one_away()
        place = object()
        self._taken[place] = source, lose
        try:
            yield
        finally:
            self._taken.pop(place, None)

    def _take_one_away(self) -> None:
        held = Counter(source for source, _ in self._taken.values())
        most = max(held.values())
        oldest = next(place for place, (source, _) in self._taken.items() if held[source] == most)
        self._taken.pop(oldest)[1]()
