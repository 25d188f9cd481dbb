"""The output of the demo: a live table in a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

EVENTS_SHOWN = 14


class Show:
    """Prints events. In a terminal, a table of the nodes stays below the newest lines. Use a Show
    as a context manager.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._lines: list[Text] = []
        self._rows: list[dict[str, Any]] = []
        self._live: Live | None = None

    def __enter__(self) -> Show:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._live is not None:
            self._live.update(self._picture())
            self._live.__exit__(*details)

    def print_line(self, text: str, *, style: str = "") -> None:
        """Print one line, prefixed with the seconds since the start."""
        seconds = time.monotonic() - self._started_s
        line = Text.assemble((f"{seconds:6.1f} s  ", "dim"), (text, style))
        if self._live is None:
            self._console.print(line, soft_wrap=True)
            return
        self._lines = [*self._lines, line][-EVENTS_SHOWN:]
        self._live.update(self._picture())

    def nodes(self, rows: list[dict[str, Any]]) -> None:
        """Show the nodes' newest status, one row each; only in a terminal."""
        self._rows = rows
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        return Group(*self._lines, nodes_table(self._rows))

    def table(self, rows: list[dict[str, Any]], judged: dict[str, bool]) -> None:
        """Print the result: the remaining nodes, and each claim with its verdict."""
        if self._live is not None:
            self._live.update(Group(*self._lines))
        self._console.print(nodes_table(rows, final=True))
        for claim, holds in judged.items():
            mark, style = ("yes", "green") if holds else ("NO ", "bold red")
            self._console.print(Text.assemble((f"  {mark}  ", style), claim))


def nodes_table(rows: list[dict[str, Any]], *, final: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ["node", "peer", "outer step", "height", "tokens"]
    for column in [*columns, *(["ledger head", "θ and m"] if final else ["tokens/s", "state"])]:
        table.add_column(column)
    for row in rows:
        cells = [row.get(name, "") for name in ("name", "peer_name", "outer_step", "ledger_height")]
        cells.append(f"{row.get('tokens') or 0:,}")
        if final:
            cells += [str(row.get("ledger_head"))[:12], str(row.get("state_digest"))[:12]]
        else:
            cells += [f"{row.get('tokens_per_s') or 0:,.0f}", row.get("state", "")]
        table.add_row(*(str(cell) for cell in cells))
    return table
