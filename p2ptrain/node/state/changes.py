"""Wake the tasks of a node when the shared state has changed.

All tasks share one condition variable: a task that changes something calls `notify_all`, and every
waiting task checks the whole state again. One condition variable per task would wake fewer tasks,
but a caller could forget to notify one.

A node with stand-in trainers calls `notify_all` about 70 times in an outer step, and dozens of
tasks wait. So a task that nobody waits for, such as one that warns the user, uses `wait_calmly`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from p2ptrain.errors import P2PTrainError

CALM_S = 0.25
"""Minimum seconds between two wake-ups of a task that waits calmly. A user does not notice such a
delay of a warning."""


class Changes:
    """A condition variable for the tasks of one trio thread.

    This class needs no lock: a task checks the state and then calls `wait`, without a checkpoint in
    between, so the task misses no change. A task whose check has checkpoints notes `count` before
    the check, and passes it to `wait` as `since`. After `wait`, the task must check the state
    again."""

    def __init__(self) -> None:
        self.count = 0
        """The number of calls of `notify_all` so far."""
        self._notified = trio.Event()

    def notify_all(self) -> None:
        """Wake every task that waits."""
        self.count += 1
        self._notified.set()
        self._notified = trio.Event()

    async def wait(self, *, since: int | None = None, at_most_s: float = float("inf")) -> None:
        """Return when a task calls `notify_all`, or after `at_most_s` seconds. Return at once if
        `notify_all` was called after `count` was `since`."""
        if since is not None and since != self.count:
            await trio.lowlevel.checkpoint()
            return
        if at_most_s == float("inf"):
            await self._notified.wait()  # Dozens of tasks wait here: a cancel scope costs as much.
            return
        with trio.move_on_after(at_most_s):
            await self._notified.wait()

    async def wait_calmly(
        self, *, since: int | None = None, at_most_s: float = float("inf")
    ) -> None:
        """Do as `wait` does, but return no earlier than after CALM_S seconds (or `at_most_s`)."""
        seen = self.count if since is None else since
        pause_s = min(CALM_S, at_most_s)
        await trio.sleep(pause_s)
        if at_most_s > pause_s:
            await self.wait(since=seen, at_most_s=at_most_s - pause_s)

    async def run_while(
        self, holds: Callable[[], bool], work: Callable[[], Awaitable[None]]
    ) -> bool:
        """Run `work`, and cancel it once `holds` returns False. `holds` is called after each
        `notify_all`. Return whether `work` finished.

        Raises whatever `work` raises."""
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
            except P2PTrainError as exc:  # Raised below: the nursery would wrap it in a group.
                errors.append(exc)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
        return done
