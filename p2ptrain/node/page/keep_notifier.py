"""Keep the process that sends messages to the owner running: `python -m p2ptrain.notify`.

There is one only while the home has a list of targets. The node starts and ends the process, and
writes what it says to the journal: failed and dropped messages. Nothing here ends the node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import trio

from p2ptrain.archive.home import Home
from p2ptrain.node.page.process import USUAL, Backoff, end_process, run_process
from p2ptrain.observe.journal import Journal

LOOK_S = 5.0
LINE_BYTES_MAX = 2000

GRACE_S = 3.0
"""Seconds in which the process must notice the end of its input. It leaves a child, which tells the
owner how the node has ended."""


def command(home: Home) -> list[str]:
    """Return the command that sends messages about the node in `home`."""
    return [sys.executable, "-m", "p2ptrain.notify", "--home", str(home.root)]


async def keep_notifier(
    home: Home,
    journal: Journal,
    *,
    to_run: Callable[[Home], Sequence[str]] = command,
    backoff: Backoff = USUAL,
) -> None:
    """Send messages while there are targets, until cancelled."""
    pause_s = 0.0
    while True:
        while not home.notify.exists():
            await trio.sleep(LOOK_S)
        began = trio.current_time()
        reason = await run_process(to_run(home), partial(_record, journal), _release)
        pause_s = backoff.after(pause_s, trio.current_time() - began)
        journal.write("notify-ended", reason=reason, again_s=pause_s)
        await trio.sleep(pause_s)


async def _record(journal: Journal, process: trio.Process) -> str:
    """Write each line of the process to the journal until its output ends."""
    output = process.stdout
    assert output is not None
    said = b""
    while piece := await output.receive_some(4096):
        *lines, said = (said + piece).split(b"\n")
        for line in lines:
            journal.write("notify", what=line[:LINE_BYTES_MAX].decode(errors="replace"))
        said = said[:LINE_BYTES_MAX]
    return ""


async def _release(process: trio.Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with trio.move_on_after(GRACE_S):
        await process.wait()
    await end_process(process)
