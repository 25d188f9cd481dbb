"""Hold back votes and other ledger messages until members were asked for signs of a duplicate.

A duplicate is another process with this process's identity. A process that is not connected to a
member when it starts cannot ask at once. Without this hold, it could vote before it learns that its
duplicate has voted too.

The hold happens only once for each start of the process, and its duration is bounded. It begins
with the first message for a connected peer and ends with the answers, or after
`QuestionTiming.start_wait_s`. So peers that stay silent, or that claim to hear another process, can
delay this process's votes by a few seconds after each start. They cannot prevent the votes.
"""

from __future__ import annotations

import trio


class FirstQuestion:
    """The hold. `answered`: whether peers were already asked while the process was starting. If so,
    there is no hold. `limit_s`: the longest time that the first message waits, in seconds."""

    def __init__(self, *, answered: bool, limit_s: float) -> None:
        self._limit_s = limit_s
        self._over = trio.Event()
        self._ends_s = float("inf")
        if answered:
            self.end()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        """End the hold, because the members that were asked first have answered or are silent."""
        self._over.set()

    async def until_over(self) -> None:
        """Wait for the answers, but no longer than `limit_s` after the first message."""
        self._ends_s = min(self._ends_s, trio.current_time() + self._limit_s)
        with trio.move_on_at(self._ends_s):
            await self._over.wait()
        self.end()
