"""The live line stays at the bottom of the terminal, and the log above it stays complete."""

from __future__ import annotations

import errno
import io
import os
import pty
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.node.control.live_line import LiveLine, keep_live_line, live_text, open_live_line
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import FOR_OTHERS, StandingBy, Training
from p2ptrain.observe.waits import Wait, clock_time
from tests.node.rig import ANN, NewRig


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows after `written`."""
    lines = [""]
    for part in written.replace("\x1b[K", "\x1b").replace("\n", "\n\r").split("\r"):
        text, erased = part.replace("\x1b", ""), "\x1b" in part
        new = text.endswith("\n")
        text = text.removesuffix("\n")
        lines[-1] = text if erased else text + lines[-1][len(text) :]
        if new:
            lines.append("")
    return lines


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def lively(stream: io.StringIO, *, live: bool = True, columns: int = 80) -> LiveLine:
    return LiveLine(stream, is_live=lambda: live, columns=lambda: columns)


def test_log_scrolls_above_the_live_line() -> None:
    stream = io.StringIO()
    line = lively(stream)
    line.write_line("one")
    line.show("training (inner 10/100), a long line")
    line.write_line("two")
    line.show("training")
    line.write_line("three")
    assert screen(stream.getvalue()) == ["one", "two", "three", "training"]
    line.show("")
    line.write_line("four")
    assert screen(stream.getvalue()) == ["one", "two", "three", "four", ""]


def test_live_line_is_cut_to_the_width_of_the_terminal() -> None:
    stream = io.StringIO()
    lively(stream, columns=10).show("standing by\x1b[2J (for the others)")
    assert screen(stream.getvalue()) == ["standing…"]


def test_output_that_is_not_a_terminal_has_the_lines_only() -> None:
    stream = io.StringIO()
    line = open_live_line(quiet=False, stream=stream, environment={"TERM": "xterm"})
    line.show("training")
    line.write_line("one")
    line.show("")
    assert stream.getvalue() == "one\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}, {"TERM": "xterm"}])
def test_dumb_or_background_terminal_has_no_live_line(
    environment: dict[str, str],
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        line = open_live_line(quiet=False, stream=stream, environment=environment)
        line.show("training")
        line.write_line("one")
        assert os.read(ours, 100) == b"one\r\n"
    os.close(ours)


def test_output_that_cannot_be_written_does_not_end_the_node() -> None:
    line = lively(FullDisk())
    line.show("training")
    line.write_line("one")
    LiveLine(None, is_live=lambda: True, columns=lambda: 80).write_line("one")


async def test_line_is_drawn_while_there_is_a_node_and_erased_at_the_end(
    tmp_path: Path, new_rig: NewRig, autojump_clock: trio.testing.MockClock
) -> None:
    context = (await new_rig(tmp_path)).context
    stream, seen = io.StringIO(), list[Context | None]([None, context])
    with trio.move_on_after(2.5):
        await keep_live_line(lively(stream), lambda: seen.pop(0) if seen[1:] else seen[0])
    assert "up 1 s" in stream.getvalue()
    assert screen(stream.getvalue()) == [""]


async def test_line_says_what_the_node_does_and_waits_for(tmp_path: Path, new_rig: NewRig) -> None:
    context = (await new_rig(tmp_path)).context
    context.state.current = Training(37, 100)
    context.trainer.tokens_per_s = 12_345.6
    steps = context.manifest.outer.steps
    assert live_text(context) == f"step 0/{steps}  training (inner 37/100)  12,346 tok/s  up 0 s"
    context.trainer.tokens_per_s = 0.0
    context.state.current = StandingBy(FOR_OTHERS)
    context.state.wait = Wait("members still train", 1e9, (ANN.peer,), 1e9 + 60)
    context.alerts.show("x", Caution("WAITING", "it is slow"))
    who = context.state.wait.who
    until = clock_time(1e9 + 60)
    assert live_text(context) == (
        f"step 0/{steps}  standing by ({who})  until {until}  1 warning  up 0 s"
    )
