"""Run a process beside the node: it ends when the node's end of its input closes, or by force."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

END_S = 3.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between the end of the process and its next start."""

    first_s: float = 1.0
    most_s: float = 300.0
    healthy_s: float = 60.0
    """A process that has served for this long is started again after the first pause."""

    def after(self, pause_s: float, served_s: float) -> float:
        """Return the next pause, from the last one (0 if there was none)."""
        if served_s >= self.healthy_s or pause_s == 0:
            return self.first_s
        return min(2 * pause_s, self.most_s)


USUAL = Backoff()


async def end_process(process: trio.Process) -> None:
    """End the process, by force if it does not end by itself. It notices the end of its input."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    if process.poll() is None:
        process.terminate()
        with trio.move_on_after(END_S):
            await process.wait()
    if process.poll() is None:
        process.kill()
        await process.wait()
    await process.stdout.aclose()


async def run_process(
    words: Sequence[str],
    follow: Callable[[trio.Process], Awaitable[str]],
    end: Callable[[trio.Process], Awaitable[None]] = end_process,
) -> str:
    """Run a process until `follow` returns, which reads its output, and then end it. Return the
    text that `follow` returned, or how the process ended."""
    start = partial(
        trio.lowlevel.open_process,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process = await start(list(words))
    except OSError as exc:
        return f"it cannot be started: {exc.strerror or exc}"
    said = ""
    try:
        with suppress(trio.BrokenResourceError):
            said = await follow(process)
    finally:
        with trio.CancelScope(shield=True):
            await end(process)
    return said.strip() or f"it ended with status {process.returncode}"
