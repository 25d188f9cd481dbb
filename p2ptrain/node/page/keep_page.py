"""Keep the process of the page running: `python -m p2ptrain.web`.

The node only starts and ends the process, and reads one line from it: the port. It does not import
the page's code, and does not wait for it. A fault of the page is written to the journal, and the
process is started again after a pause that grows. Nothing here ends the node.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

import trio

from p2ptrain.archive.home import Home
from p2ptrain.node.page.process import USUAL, Backoff, run_process
from p2ptrain.observe.journal import Journal
from p2ptrain.suggested_command import to_paste

PrintLine = Callable[[str], None]

FIRST_LINE_BYTES_MAX = 1000
TAIL_BYTES_MAX = 2000
"""Maximum bytes of the process's newest output that are kept for the journal."""

START_S = 120.0
"""Seconds in which the process must name its port: it loads slowly while trainers use all cores."""

_PORT = re.compile(rb"port (\d{1,5})\n")


def command(home: Home, port: int) -> list[str]:
    """Return the command that serves the page of `home` at the first free port from `port` on."""
    words = ["-m", "p2ptrain.web", "--home", str(home.root), "--port", str(port), "--attached"]
    return [sys.executable, *words]


async def keep_page(
    home: Home,
    port: int,
    print_line: PrintLine,
    journal: Journal,
    *,
    to_run: Callable[[Home, int], Sequence[str]] = command,
    backoff: Backoff = USUAL,
) -> None:
    """Serve the page until cancelled. Print its URL once, and a line at the first fault."""
    keeper = _Keeper(home, port, print_line, journal)
    pause_s = 0.0
    while True:
        began = trio.current_time()
        reason = await keeper.run_once(to_run(home, keeper.port))
        pause_s = backoff.after(pause_s, trio.current_time() - began)
        journal.write("page-ended", reason=reason, again_s=pause_s)
        keeper.say_fault(pause_s)
        await trio.sleep(pause_s)


class _Keeper:
    """The state of the process that survives its restarts."""

    def __init__(self, home: Home, port: int, print_line: PrintLine, journal: Journal) -> None:
        self.port = port
        self._home = home
        self._print_line = print_line
        self._journal = journal
        self._told = False
        self._fault_told = False

    async def run_once(self, words: Sequence[str]) -> str:
        """Run the process until it ends. Return its newest output, or why it ended."""
        return await run_process(words, self._follow)

    async def _follow(self, process: trio.Process) -> str:
        output = process.stdout
        assert output is not None
        said = b""
        with trio.move_on_after(START_S):
            said = await _first_line(output)
        port = _port_in(said)
        if port is None and b"\n" in said:
            return said.decode(errors="replace")
        if port is None:
            return said.decode(errors="replace") or "it did not name its port in time"
        self._serves_at(port, process.pid)
        said = b""
        while piece := await output.receive_some(4096):
            said = (said + piece)[-TAIL_BYTES_MAX:]
        return said.decode(errors="replace")

    def _serves_at(self, port: int, pid: int) -> None:
        self._journal.write("page-serves", port=port, pid=pid)
        if not self._told or port != self.port:
            self._told = True
            to_act = to_paste(self._home.root, "open")
            self._print_line(f"see the run at http://127.0.0.1:{port}/ (to act there: {to_act})")
        self.port = port

    def say_fault(self, pause_s: float) -> None:
        if not self._fault_told:
            self._fault_told = True
            self._print_line(
                f"the page's process has ended; this node starts it again in {pause_s:.0f} s, and "
                "whenever it ends later. Training is not affected. The journal has the reason."
            )


async def _first_line(output: trio.abc.ReceiveStream) -> bytes:
    said = b""
    while b"\n" not in said and len(said) < FIRST_LINE_BYTES_MAX:
        piece = await output.receive_some(FIRST_LINE_BYTES_MAX)
        if not piece:
            break
        said += piece
    return said


def _port_in(said: bytes) -> int | None:
    """Return the port that the process named; None if it said something else."""
    found = _PORT.match(said)
    port = int(found[1]) if found else 0
    return port if 0 < port < 65536 else None
