"""Decide how much of the ledger's queue one peer may fill: a pure decision, given the free room."""

from __future__ import annotations

from collections.abc import Hashable

PART = 8
"""The divisor of shares: one author may fill an eighth of the free places of a queue. The last
eighth of the whole is for authors with nothing waiting there, one report each.
"""


class QueueShares:
    """How much each author has waiting in a queue that all share."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, int] = {}

    def reserve(self, author: Hashable, free: int, size: int) -> bool:
        """Count one more item of `author`, if the queue has `free` of its `size` places left.
        Return False if the author has its share already.
        """
        waiting = self._waiting.get(author, 0)
        if free < 1 or (waiting and PART * waiting >= free - size // PART):
            return False
        self._waiting[author] = waiting + 1
        return True

    def release(self, author: Hashable) -> None:
        """Note that an item of `author` no longer waits. An item that was never counted is
        ignored.
        """
        waiting = self._waiting.pop(author, 0)
        if waiting > 1:
            self._waiting[author] = waiting - 1
