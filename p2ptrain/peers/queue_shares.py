"""How much of the ledger's queue one peer may fill: a pure decision, told the room."""

from __future__ import annotations

from collections.abc import Hashable

PART = 8
"""One author may fill an eighth of what is free in a queue. The last eighth of the whole is for
those who have nothing waiting there: one report each.
"""


class Shares:
    """Who has how much waiting in a queue that all share."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, int] = {}

    def take(self, author: Hashable, free: int, size: int) -> bool:
        """Count one more of `author`'s, where `free` of the queue's `size` places are; False if it
        has its share already.
        """
        waiting = self._waiting.get(author, 0)
        if free < 1 or (waiting and PART * waiting >= free - size // PART):
            return False
        self._waiting[author] = waiting + 1
        return True

    def give_back(self, author: Hashable) -> None:
        """One of `author`'s waits no longer. What was never counted is passed over."""
        waiting = self._waiting.pop(author, 0)
        if waiting > 1:
            self._waiting[author] = waiting - 1
