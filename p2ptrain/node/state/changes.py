"""Wake the tasks of a node when the shared state has changed.

There is one condition for all tasks: a task that changes something calls `ring`, and every waiting
task looks at the state again. One condition per task would be cheaper, but a caller could forget
one of them. A node has a dozen tasks and a few changes a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from p2ptrain.errors import P2PTrainError


class Changes:
    """A condition to wait for. There must not be a checkpoint between a task's look at the state
    and its call of `wait`."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = trio.Event()

    async def wait(self, *, at_most_s: float = float("inf")) -> None:
        """Return when a task calls `ring`, or after `at_most_s`."""
        with trio.move_on_after(at_most_s):
            await self._rung.wait()

    async def so_long_as(
        self, holds: Callable[[], bool], work: Callable[[], Awaitable[None]]
    ) -> bool:
        """Run `work`, and cancel it once `holds` returns False. Return whether `work` finished.

        Raises whatever `work` raises.
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
            except (
                P2PTrainError
            ) as exc:  # It is raised below: the nursery would wrap it in a group.
                errors.append(exc)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
        return done
