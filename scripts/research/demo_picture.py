"""Record the terminal of `python -m p2ptrain.demo`, and draw the recording as an animated SVG.

`Screen` understands the escape sequences that rich's live display writes, and no others. The frames
of the picture are screens that the demo showed, at least `FRAME_S` apart. A viewer that does not
animate pictures shows the last screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

COLUMNS, ROWS = 96, 40
FRAME_S = 1.5
LAST_FRAME_S = 12.0
SPEED = 2.0
"""The picture plays this many times as fast as the demo."""
QUIET_S = 0.04
"""Seconds of pause in the output after which a screen counts as complete."""
WAIT_S = 3.0
"""Maximum seconds for which the demo's unchanged screen is shown, before division by `SPEED`."""
PICTURE_BYTES_MAX = 100_000

FONT = 13.0
CELL_WIDTH, LINE_HEIGHT = 7.83, 17.0
MARGIN = 14.0
STYLES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y"}
"""SGR parameters (codes of colours and styles) that the demo uses, and the SVG classes that draw
them."""
SHEET = (
    ".b{font-weight:bold}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}"
    "@media(prefers-reduced-motion:reduce){.f{animation:none!important}}"
)

UNFINISHED = re.compile(r"(\x1b(?:\[[0-9;?]*)?)\Z")
"""An escape sequence of which only the beginning has been read."""
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")

Cell = tuple[str, str]
"""A character and its classes."""
Line = tuple[Cell, ...]
Picture = tuple[Line, ...]


@dataclass(slots=True)
class Screen:
    """A terminal of `rows` rows that scrolls."""

    rows: int = ROWS
    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: tuple[str, ...] = ()

    def write(self, text: str) -> None:
        for found in SEQUENCE.finditer(text):
            if found[2] is not None:
                self._obey(found[2], found[1])
            elif found[0] == "\r":
                self.column = 0
            elif found[0] == "\n":
                self._next_line()
            else:
                self._put(found[0])

    def _obey(self, command: str, parameter: str) -> None:
        if command == "m":
            for each in parameter.split(";"):
                known = STYLES.get(each)
                self.style = () if each in ("", "0") else (*self.style, *([known] if known else []))
        elif command == "A":
            self.row = max(0, self.row - int(parameter or 1))
        elif command == "K":
            self.lines[self.row] = []

    def _next_line(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
        if len(self.lines) > self.rows:
            del self.lines[0]
            self.row -= 1

    def _put(self, text: str) -> None:
        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column - len(line)))
        cells = [(letter, " ".join(self.style)) for letter in text]
        line[self.column : self.column + len(cells)] = cells
        self.column += len(cells)

    def picture(self) -> Picture:
        return tuple(tuple(line) for line in self.lines)


def recorded(command: list[str]) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal of its own. Yield its output with the seconds since its start.

    Raises OSError: the command failed.
    """
    master, terminal = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    running = subprocess.Popen(command, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    begun_s, decoder, rest = time.monotonic(), getincrementaldecoder("utf-8")(), ""
    while data := _read(master):
        whole, *unfinished = UNFINISHED.split(rest + decoder.decode(data))
        rest = "".join(unfinished)
        yield time.monotonic() - begun_s, whole
    os.close(master)
    if status := running.wait():
        raise OSError(f"the command ended with status {status}")


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux reports the end of a terminal's last process in this way.
        return b""


def frames_of(
    output: Iterator[tuple[float, str]], frame_s: float = FRAME_S
) -> list[tuple[float, Picture]]:
    """Return the screens to show, at least `frame_s` apart, each with the time in seconds at which
    the demo showed it."""
    screen, frames = Screen(), list[tuple[float, Picture]]()
    now = 0.0
    for at, text in output:
        if at > now + QUIET_S and (not frames or now >= frames[-1][0] + frame_s):
            _show(frames, now, screen.picture())
        now = at
        screen.write(text)
    _show(frames, now, screen.picture())
    return frames


def _show(frames: list[tuple[float, Picture]], now: float, picture: Picture) -> None:
    if any(picture) and (not frames or frames[-1][1] != picture):
        frames.append((now, picture))


def drawn(frames: list[tuple[float, Picture]]) -> str:
    """Return the SVG. Each distinct line is defined once; frames refer to their lines."""
    defined = {line: f"l{number}" for number, line in enumerate(_distinct(frames))}
    gaps = [after - at for (at, _), (after, _) in pairwise(frames)]
    times_s = [*(min(gap, WAIT_S) / SPEED for gap in gaps), LAST_FRAME_S]
    total = sum(times_s)
    rows = max(len(picture) for _, picture in frames)
    width, height = 2 * MARGIN + COLUMNS * CELL_WIDTH, 2 * MARGIN + rows * LINE_HEIGHT
    rules, groups, shown = [], [], 0.0
    for number, (time_s, (_, picture)) in enumerate(zip(times_s, frames, strict=True)):
        until = shown + 100 * time_s / total
        rules.append(_rule(number, shown, until, last=number == len(frames) - 1, total=total))
        groups.append(_group(number, picture, defined, last=number == len(frames) - 1))
        shown = until
    texts = "".join(f'<text id="{name}">{_spans(line)}</text>' for line, name in defined.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'xml:space="preserve" '
        f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="{FONT:g}" fill="#e6edf3">'
        "<title>The terminal of scripts/demo, recorded by scripts/demo_picture</title>"
        f"<style>text{{white-space:pre}}{SHEET}{''.join(rules)}</style><defs>{texts}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{"".join(groups)}</svg>\n'
    )


def _distinct(frames: list[tuple[float, Picture]]) -> dict[Line, None]:
    return dict.fromkeys(line for _, picture in frames for line in picture if line)


def _rule(number: int, shown: float, until: float, *, last: bool, total: float) -> str:
    after = "" if last else f"{until:.2f}%,100%{{opacity:0}}"
    before = "" if number == 0 else f"0%,{shown - 0.01:.2f}%{{opacity:0}}"
    visible = f"{shown:.2f}%,{100 if last else until - 0.01:.2f}%{{opacity:1}}"
    return (
        f"@keyframes k{number}{{{before}{visible}{after}}}"
        f"#f{number}{{animation:k{number} {total:.1f}s infinite}}"
    )


def _group(number: int, picture: Picture, defined: dict[Line, str], *, last: bool) -> str:
    uses = "".join(
        f'<use href="#{defined[line]}" x="{MARGIN:g}" y="{MARGIN + (row + 0.75) * LINE_HEIGHT:g}"/>'
        for row, line in enumerate(picture)
        if line
    )
    hidden = "" if last else ' opacity="0"'
    return f'<g class="f" id="f{number}"{hidden}>{uses}</g>'


def _spans(line: Line) -> str:
    """Return the line's text. Adjacent cells of one style share an element."""
    spans, begun = [], 0
    for place in range(1, len(line) + 1):
        if place == len(line) or line[place][1] != line[begun][1]:
            text = escape("".join(letter for letter, _ in line[begun:place]), quote=False)
            style = line[begun][1]
            spans.append(f'<tspan class="{style}">{text}</tspan>' if style else text)
            begun = place
    return "".join(spans).rstrip()


def main() -> int:
    target = Path(sys.argv[1])
    frames = frames_of(recorded([sys.executable, "-m", "p2ptrain.demo", *sys.argv[2:]]))
    svg = drawn(frames)
    if (size := len(svg.encode())) > PICTURE_BYTES_MAX:
        sys.stderr.write(f"the picture has {size} bytes; the limit is {PICTURE_BYTES_MAX}\n")
        return 1
    target.write_text(svg, encoding="utf-8")
    sys.stderr.write(f"{target}: {size} bytes, {len(frames)} frames, {frames[-1][0]:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
