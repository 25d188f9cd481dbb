"""How the tasks of a node learn that it is time to look again.

One bell for everybody: whoever changes something rings, and every task that waits looks at the
whole state anew. A bell a task would be cheaper and could be forgotten; a node has a dozen tasks
and a few changes a second.
"""

from __future__ import annotations

import trio


class Changes:
    """A bell. Between looking at the state and waiting here there must be no checkpoint."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = trio.Event()

    async def wait(self, *, at_most_s: float = float("inf")) -> None:
        """Return when somebody rings, or after `at_most_s`."""
        with trio.move_on_after(at_most_s):
            await self._rung.wait()
