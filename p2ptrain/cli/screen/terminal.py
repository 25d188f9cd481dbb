"""Show a whole screen on a terminal, read single keys, and restore the terminal afterwards.

Everything is restored on the way out: after q, after Ctrl-C, after an error, and while the user has
stopped the process with Ctrl-Z. Only SIGKILL leaves the terminal as it is; `reset` repairs it then.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from p2ptrain.cli.screen.frame import Line
from p2ptrain.cli.screen.lanes import IN_ASCII
from p2ptrain.errors import ConfigError

ENTER = "\x1b[?1049h\x1b[?25l"
"""Switch to the alternate screen, so that the user's own lines come back, and hide the cursor."""

LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
STYLES = {"": "", "bold": "\x1b[1m", "dim": "\x1b[2m", "alarm": "\x1b[1;31m"}
PLAIN = "\x1b[0m"
NAMED = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
KEY_BYTES_MAX = 64
COLUMNS, ROWS = 80, 24


class Terminal:
    """The terminal of this process, between `opened` and its end."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._coloured = "NO_COLOR" not in environment
        self._unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self._before = termios.tcgetattr(self._input)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)

    def enter(self) -> None:
        tty.setcbreak(self._input)
        self._write(ENTER)

    def leave(self) -> None:
        """Restore the terminal. It may be called more than once."""
        self._write(LEAVE)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def close(self) -> None:
        os.close(self._woken)
        os.close(self._wakes)

    def wake(self, *_: object) -> None:
        """End a call of `keys`. Signal handlers and other threads may call this."""
        with suppress(BlockingIOError):  # If the pipe is full, `keys` ends anyway.
            os.write(self._wakes, b".")

    def size(self) -> tuple[int, int]:
        """Return the columns and rows."""
        try:
            found = os.get_terminal_size(self._output)
        except OSError:
            return COLUMNS, ROWS
        return found.columns or COLUMNS, found.lines or ROWS

    def draw(self, lines: Sequence[Line]) -> None:
        """Show `lines` in place of the last screen. Unchanged lines do not flicker, because nothing
        is erased before it is overwritten."""
        shown = f"{ERASE_LINE}\r\n".join(map(self._painted, lines))
        self._write(f"{HOME}{shown}{ERASE_LINE}{ERASE_BELOW}")

    def _painted(self, line: Line) -> str:
        text = line.text if self._unicode else line.text.translate(IN_ASCII)
        style = STYLES[line.style] if self._coloured else ""
        return f"{style}{text}{PLAIN}" if style else text

    def keys(self, at_most_s: float) -> list[str]:
        """Return the keys that were pressed, after at most `at_most_s` seconds. An arrow is "up" or
        "down". "" means that the terminal is gone."""
        ready, _, _ = select.select([self._input, self._woken], [], [], max(0.0, at_most_s))
        if self._woken in ready:
            os.read(self._woken, KEY_BYTES_MAX)
        if self._input not in ready:
            return []
        data = os.read(self._input, KEY_BYTES_MAX)
        if data in NAMED or not data:
            return [NAMED.get(data, "")]
        return [] if data.startswith(b"\x1b") else list(data.decode(errors="replace"))

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "ascii", errors="replace")
        while data:
            data = data[os.write(self._output, data) :]


@contextmanager
def opened() -> Iterator[Terminal]:
    """Take over the terminal.

    Raises ConfigError (NO-TERMINAL): stdin or stdout is not a terminal, or it cannot move its
    cursor.
    """
    able = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if not able or os.environ.get("TERM", "dumb") == "dumb":
        raise ConfigError(
            "this command needs a terminal that can move its cursor",
            code="NO-TERMINAL",
            evidence=[f"TERM is {os.environ.get('TERM', 'not set')}" if able else "no terminal"],
            do="run it in a terminal, or print one screen with --once",
        )
    terminal = Terminal()
    with _signals(terminal):
        terminal.enter()
        try:
            yield terminal
        finally:
            terminal.leave()
            terminal.close()


@contextmanager
def _signals(terminal: Terminal) -> Iterator[None]:
    """Redraw after a change of size, and give the terminal back while the process is stopped."""

    def stop(number: int, frame: object) -> None:
        terminal.leave()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # Returns when the user continues the process with `fg`.
        signal.signal(number, stop)
        terminal.enter()
        terminal.wake()

    before = {each: signal.getsignal(each) for each in (signal.SIGWINCH, signal.SIGTSTP)}
    signal.signal(signal.SIGWINCH, terminal.wake)
    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
