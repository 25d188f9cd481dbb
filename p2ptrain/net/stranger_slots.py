"""A limited number of places for unknown peers, shared fairly between the sources of these peers.

A source is something that an attacker cannot easily multiply, such as an IP address. This module
does not know what the places are used for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class StrangerSlots:
    """When all places are taken, the source with the most places loses its oldest place. So a new
    place is always available, and a flood from one source takes places only from that source. If
    several sources have the most places, the oldest of all their places is lost."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[object, tuple[Hashable, Callable[[], None]]] = {}

    @contextmanager
    def taken(self, source: Hashable, lose: Callable[[], None]) -> Iterator[None]:
        """Hold a place while the block lasts. If the place is lost, `lose` is called and must end
        the block."""
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
