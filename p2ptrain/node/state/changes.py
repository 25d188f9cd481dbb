"""How the tasks of a node learn that it is time to look again.

One bell for everybody: whoever changes something rings, and every task that waits looks at the
whole state anew. A bell a task would be cheaper and could be forgotten; a node has a dozen tasks
and a few changes a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from p2ptrain.errors import P2PTrainError


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

    async def so_long_as(
        self, holds: Callable[[], bool], work: Callable[[], Awaitable[None]]
    ) -> bool:
        """Do `work`, but give it up when `holds` has ceased to hold. Whether it was done.

        Raises what `work` raises.
        """
        done, errors = False, list[P2PTrainError]()

        async def watch() -> None:
            while holds():
                await self.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await work()
                done = True
            except P2PTrainError as exc:  # Carried out by hand, or the nursery would wrap it.
                errors.append(exc)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
        return done
