"""How much one peer may ask of this node: so many questions in a time, so many reports that wait.

Pure decisions, told the time and the room. They do not know what is asked, nor why it waits.
"""

from __future__ import annotations

from collections.abc import Hashable

KNOWN_MAX = 1024
"""Whose questions are counted; beyond that who has not asked for longest is as if it never had."""

PART = 8
"""One author may fill an eighth of what is free in a queue. The last eighth of the whole is for
those who have nothing waiting there: one report each.
"""


class Allowance:
    """Each asker has `burst` turns, which come back at `per_s`. `now` may never go back."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._turn_s = 1.0 / per_s
        self._burst_s = burst / per_s
        self._whole_at: dict[Hashable, float] = {}
        """When each will have all its turns again; who asked last comes last."""

    def take(self, asker: Hashable, now: float) -> bool:
        """Use up a turn of `asker`; False if it has none now."""
        whole_at = max(self._whole_at.pop(asker, now), now) + self._turn_s
        granted = whole_at <= now + self._burst_s + 1e-9
        self._whole_at[asker] = whole_at if granted else whole_at - self._turn_s
        if len(self._whole_at) > KNOWN_MAX:
            del self._whole_at[next(iter(self._whole_at))]
        return granted


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
