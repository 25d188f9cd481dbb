"""The node starts the page's process again when it ends, and ends it with itself."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import trio

from p2ptrain.archive.home import Home, is_in_use
from p2ptrain.node.page.keep_page import keep_page
from p2ptrain.node.page.process import USUAL, Backoff
from p2ptrain.observe.journal import Journal, newest_records

QUICK = Backoff(first_s=0.01, most_s=0.02)

SERVES = """
import sys
print("port", 4280 + len(sys.argv), flush=True)
sys.stdin.read()
"""
FAILS = "import sys; sys.stderr.write('no such library'); sys.exit(3)"
GARBAGE = "import sys; print('[' * 100_000); sys.stdin.read()"


@dataclass
class Kept:
    """A page that is kept, and the lines it printed. `starts` are the ports that were asked for."""

    folder: Path
    program: str
    lines: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def command(self, home: Home, port: int) -> Sequence[str]:
        self.starts.append(port)
        self._notify()
        return [sys.executable, "-c", self.program]

    def print_line(self, text: str) -> None:
        self.lines.append(text)
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def keep(self) -> None:
        home = Home(self.folder)
        with Journal(home.journal) as journal:
            await keep_page(
                home, 4280, self.print_line, journal, to_run=self.command, backoff=QUICK
            )

    async def until_lines(self, count: int) -> None:
        while len(self.lines) < count:
            await self.changed.wait()

    async def until_starts(self, count: int) -> None:
        while len(self.starts) < count:
            await self.changed.wait()


def children(program: str) -> list[psutil.Process]:
    """Return the child processes that run `program`. Those of other tests may still run."""
    return [each for each in psutil.Process().children() if program in each.cmdline()]


async def test_killed_page_is_started_again_at_its_port(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SERVES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keep)
        await kept.until_lines(1)
        (process,) = children(SERVES)
        os.kill(process.pid, signal.SIGKILL)
        await kept.until_starts(2)
        nursery.cancel_scope.cancel()
    assert kept.lines[0].startswith("see the run at http://127.0.0.1:4281/")
    assert kept.lines[1].startswith("the page's process has ended; this node starts it")
    assert kept.starts == [4280, 4281]
    assert children(SERVES) == []
    reasons = [each.get("reason") for each in newest_records(tmp_path / "journal.jsonl")]
    assert reasons == [None, f"it ended with status {-signal.SIGKILL}"]


async def test_url_is_printed_once_while_the_port_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SERVES.replace("sys.stdin.read()", ""))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keep)
        await kept.until_starts(4)
        nursery.cancel_scope.cancel()
    assert [line.split(" at ")[0] for line in kept.lines] == [
        "see the run",
        "the page's process has ended; this node starts it again in 0 s, and whenever it ends "
        "later. Training is not affected. The journal has the reason.",
    ]


async def test_reason_of_a_failure_is_in_the_journal(tmp_path: Path) -> None:
    kept = Kept(tmp_path, FAILS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keep)
        await kept.until_starts(3)
        nursery.cancel_scope.cancel()
    ended = newest_records(tmp_path / "journal.jsonl")
    assert {(each["event"], each["reason"]) for each in ended} == {
        ("page-ended", "no such library")
    }


async def test_program_that_does_not_exist_does_not_end_the_node(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "")

    def missing(home: Home, port: int) -> Sequence[str]:
        kept.command(home, port)
        return [str(tmp_path / "missing")]

    async with trio.open_nursery() as nursery:

        async def keep() -> None:
            home = Home(tmp_path)
            with Journal(home.journal) as journal:
                await keep_page(home, 0, kept.print_line, journal, to_run=missing, backoff=QUICK)

        nursery.start_soon(keep)
        await kept.until_starts(3)
        nursery.cancel_scope.cancel()
    assert len(kept.lines) == 1


async def test_long_output_instead_of_a_port_ends_the_process(tmp_path: Path) -> None:
    kept = Kept(tmp_path, GARBAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keep)
        await kept.until_starts(2)
        nursery.cancel_scope.cancel()
    assert children(GARBAGE) == []


@pytest.mark.parametrize(
    ("pause_s", "served_s", "next_s"),
    [(0.0, 0.0, 1.0), (1.0, 5.0, 2.0), (200.0, 5.0, 300.0), (300.0, 61.0, 1.0)],
)
def test_pauses_grow_until_the_page_has_served_for_a_minute(
    pause_s: float, served_s: float, next_s: float
) -> None:
    assert USUAL.after(pause_s, served_s) == next_s


async def test_real_process_serves_and_ends_with_its_input(tmp_path: Path) -> None:
    lines: list[str] = []
    home = Home(tmp_path)
    async with trio.open_nursery() as nursery:
        with Journal(home.journal) as journal:
            served = trio.Event()

            def print_line(text: str) -> None:
                lines.append(text)
                served.set()

            nursery.start_soon(keep_page, home, 0, print_line, journal)
            await served.wait()
            (process,) = (
                each for each in psutil.Process().children() if "p2ptrain.web" in each.cmdline()
            )
            port = int(lines[0].split("127.0.0.1:")[1].split("/")[0])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /run.txt HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = b"".join([piece async for piece in stream])
            assert process.nice() >= 10
            assert json.loads(home.page.read_text())["port"] == port
            assert is_in_use(home.page)
            nursery.cancel_scope.cancel()
    assert b"The node has not answered yet.\n" in answer
    assert not process.is_running()
    assert not is_in_use(home.page)
    assert home.page_token.stat().st_mode & 0o777 == 0o600
