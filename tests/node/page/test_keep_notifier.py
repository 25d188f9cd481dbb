"""The node runs the process that sends messages while there are targets, and takes no harm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import trio
from trio.testing import MockClock

from p2ptrain.archive.home import Home
from p2ptrain.node.page.keep_notifier import keep_notifier
from p2ptrain.node.page.process import Backoff
from p2ptrain.notify.targets import Target, save_targets
from p2ptrain.observe.journal import Journal, newest_records

QUICK = Backoff(first_s=0.01, most_s=0.02)


class Starts:
    """Counts the starts of a program."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.count = 0
        self.changed = trio.Event()

    def command(self, home: Home) -> Sequence[str]:
        self.count += 1
        self.changed.set()
        self.changed = trio.Event()
        return [sys.executable, "-c", self.program]

    async def until(self, count: int) -> None:
        while self.count < count:
            await self.changed.wait()


def made_home(folder: Path) -> Home:
    home = Home(folder)
    save_targets(home.notify, [Target("one", "ntfy:one", ("ended",))])
    return home


async def test_failed_messages_are_in_the_journal_and_the_process_starts_again(
    tmp_path: Path,
) -> None:
    home, starts = made_home(tmp_path), Starts("print('one: refused'); raise SystemExit(3)")
    with Journal(home.journal) as journal:
        async with trio.open_nursery() as nursery:

            async def keep() -> None:
                await keep_notifier(home, journal, to_run=starts.command, backoff=QUICK)

            nursery.start_soon(keep)
            await starts.until(3)
            nursery.cancel_scope.cancel()
    found = [(each["event"], each.get("what") or each.get("reason")) for each in told(home)]
    assert found[:4] == [("notify", "one: refused"), ("notify-ended", "it ended with status 3")] * 2


def told(home: Home) -> list[dict[str, object]]:
    return newest_records(home.journal)


async def test_endless_line_and_missing_program_do_no_harm(tmp_path: Path) -> None:
    home, starts = made_home(tmp_path), Starts("print('x' * 10**6)")

    def missing(home: Home) -> Sequence[str]:
        starts.command(home)
        return [str(tmp_path / "missing")] if starts.count > 1 else starts.command(home)

    with Journal(home.journal) as journal:
        async with trio.open_nursery() as nursery:

            async def keep() -> None:
                await keep_notifier(home, journal, to_run=missing, backoff=QUICK)

            nursery.start_soon(keep)
            await starts.until(4)
            nursery.cancel_scope.cancel()
    first, second, third, *_ = told(home)
    assert len(str(first["what"])) == 2000
    assert second["reason"] == "it ended with status 0"
    assert str(third["reason"]).startswith("it cannot be started")


async def test_no_process_runs_without_targets(tmp_path: Path, autojump_clock: MockClock) -> None:
    starts = Starts("")
    with Journal(tmp_path / "journal.jsonl") as journal, trio.move_on_after(100):
        await keep_notifier(Home(tmp_path), journal, to_run=starts.command)
    assert starts.count == 0


async def test_process_ends_with_the_node(tmp_path: Path) -> None:
    program = "import sys; sys.stdin.read()  # the notifier of this test"
    home, starts = made_home(tmp_path), Starts(program)
    with Journal(home.journal) as journal:
        async with trio.open_nursery() as nursery:

            async def keep() -> None:
                await keep_notifier(home, journal, to_run=starts.command)

            nursery.start_soon(keep)
            await starts.until(1)
            nursery.cancel_scope.cancel()
    assert [each for each in psutil.Process().children() if program in each.cmdline()] == []
