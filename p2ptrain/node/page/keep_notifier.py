"""Keep the process that sends messages to the owner running: `python -m p2ptrain.notify`.

There is one only while the home has a list of targets. The node starts and ends the process, and
writes what it says to the journal: failed and dropped messages. Nothing here ends the node.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from p2ptrain.archive.home import Home
from p2ptrain.node.page.keep_page import USUAL, Backoff, end_process
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
        reason = await _run_once(to_run(home), journal)
        pause_s = backoff.after(pause_s, trio.current_time() - began)
        journal.write("notify-ended", reason=reason, again_s=pause_s)
        await trio.sleep(pause_s)


async def _run_once(words: Sequence[str], journal: Journal) -> str:
    """Run the process until it ends, and return how it ended."""
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
    try:
        with suppress(trio.BrokenResourceError):
            await _record(process, journal)
    finally:
        with trio.CancelScope(shield=True):
            await _release(process)
    return f"it ended with status {process.returncode}"


async def _record(process: trio.Process, journal: Journal) -> None:
    """Write each line of the process to the journal until its output ends."""
    output = process.stdout
    assert output is not None
    said = b""
    while piece := await output.receive_some(4096):
        *lines, said = (said + piece).split(b"\n")
        for line in lines:
            journal.write("notify", what=line[:LINE_BYTES_MAX].decode(errors="replace"))
        said = said[:LINE_BYTES_MAX]


async def _release(process: trio.Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with trio.move_on_after(GRACE_S):
        await process.wait()
    await end_process(process)
