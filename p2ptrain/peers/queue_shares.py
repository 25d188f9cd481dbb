"""Limit how much of the ledger's queue one peer may fill, depending on how much is free."""

from __future__ import annotations

from collections.abc import Hashable

PART = 8
"""One author may fill a PART-th (an eighth) of the free slots of a queue. The last eighth of the
slots does not count as free: it is for authors with nothing in the queue, one item each."""


class QueueShares:
    """Counts the items that each author has in a shared queue."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, int] = {}

    def reserve(self, author: Hashable, free: int, size: int) -> bool:
        """Count one more item of `author`. The queue has `size` slots, of which `free` are empty.
        Return False, and count nothing, if the author already has its share or no slot is free."""
        waiting = self._waiting.get(author, 0)
        if free < 1 or (waiting and PART * waiting >= free - size // PART):
            return False
        self._waiting[author] = waiting + 1
        return True

    def release(self, author: Hashable) -> None:
        """Note that an item of `author` has left the queue. An item that was never counted is
        ignored."""
        waiting = self._waiting.pop(author, 0)
        if waiting > 1:
            self._waiting[author] = waiting - 1
