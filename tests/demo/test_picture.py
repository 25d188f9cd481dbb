"""The recording of the demo's terminal shows its screens and nothing else."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from scripts.research.demo_picture import Picture, Screen, drawn, frames_of, recorded

SVG = "{http://www.w3.org/2000/svg}"


def words(picture: Picture) -> list[str]:
    return ["".join(letter for letter, _ in line) for line in picture]


def test_screen_overwrites_lines_that_the_live_display_redraws() -> None:
    screen = Screen()
    screen.write("\x1b[2m 0.1 s\x1b[0m  first\r\nold\r\n")
    screen.write("\r\x1b[2K\x1b[1A\x1b[2K\x1b[1;31mnew\x1b[0m\r\nlast\x1b[?25h")
    assert words(screen.picture()) == [" 0.1 s  first", "new", "last"]
    first, new, _ = screen.picture()
    assert [style for _, style in first] == ["d"] * 6 + [""] * 7
    assert [style for _, style in new] == ["b r"] * 3


def test_full_screen_scrolls_up() -> None:
    screen = Screen(rows=3)
    screen.write("a\r\nb\r\nc\r\nd")
    assert words(screen.picture()) == ["b", "c", "d"]


def test_terminal_is_recorded_and_drawn() -> None:
    """A screen is left out if it follows the previous one within 0.05 s, unless it is the last."""
    program = """import time
for text in ("<0>\\n", "<1>\\n", "<2>\\n", "<3>θ"):
    print(end=text, flush=True)
    time.sleep(0.1)
"""
    frames = frames_of(recorded([sys.executable, "-c", program]), frame_s=0.05)
    assert words(frames[-1][1]) == ["<0>", "<1>", "<2>", "<3>θ"]
    assert 2 <= len(frames) <= 5
    root = ElementTree.fromstring(drawn(frames))
    named = {f"#{text.get('id')}": text.text for text in root.iter(f"{SVG}text")}
    groups = [[named[use.get("href", "")] for use in group] for group in root.iter(f"{SVG}g")]
    assert groups == [[line for line in words(picture) if line] for _, picture in frames]
    assert [group.get("opacity") for group in root.iter(f"{SVG}g")][-1] is None


def test_failed_command_gives_no_recording() -> None:
    with pytest.raises(OSError, match="ended with status 3"):
        list(recorded([sys.executable, "-c", "raise SystemExit(3)"]))
