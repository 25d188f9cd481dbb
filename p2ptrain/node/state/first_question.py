"""Hold back the messages that this process signs until it has asked members once whether another
process has its identity.

A process that is not connected to a member when it starts cannot ask whether another process has
its identity. It connects later. Without this hold, it could send a vote before its first question
was answered, although its duplicate has voted too.

The hold is bounded, once for each start. It begins with the first message for a connected peer and
ends with the answers, or after `QuestionTiming.start_wait_s`. So peers that stay silent, or that
claim to hear another process, delay the votes of one start by some seconds. They cannot prevent the
votes.
"""

from __future__ import annotations

import trio


class FirstQuestion:
    """`answered`: members answered already while the process was starting. `limit_s`: how long the
    first message waits.
    """

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
        """Call this when the members that were asked first have answered, or failed to."""
        self._over.set()

    async def until_over(self) -> None:
        """Wait for the answers, but no longer than `limit_s` after the first message."""
        self._ends_s = min(self._ends_s, trio.current_time() + self._limit_s)
        with trio.move_on_at(self._ends_s):
            await self._over.wait()
        self.end()
