"""A bounded number of places for those whom nobody knows yet, shared fairly by where they are from.

It does not know what the places are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class Places:
    """When all are taken, whoever holds most of them loses its oldest: a place is always had, and
    one source alone takes it from itself only. Among equals the oldest goes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[object, tuple[Hashable, Callable[[], None]]] = {}

    @contextmanager
    def taken(self, source: Hashable, lose: Callable[[], None]) -> Iterator[None]:
        """Hold a place while the block lasts, or until `lose` is called, which must end it soon."""
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
