"""A queue in which each author has a line of its own, and the lines take turns.

In one common line, a peer that sends hundreds of messages at once delays the messages of all others
behind its own. Here an item waits for the earlier items of its author, and for one item of each
other author at a time. The queue does not limit its length (`queue_shares` does).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """The items of each author keep their order."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Item]] = {}
        """The lines that are not empty, in the order of their turns."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, author: Hashable, item: Item) -> None:
        self._lines.setdefault(author, deque()).append(item)
        self._length += 1

    def pop(self) -> Item:
        """Remove and return the next item. The queue must not be empty."""
        author, line = next(iter(self._lines.items()))
        del self._lines[author]
        item = line.popleft()
        if line:
            self._lines[author] = line  # Its next turn comes after those of all others.
        self._length -= 1
        return item
