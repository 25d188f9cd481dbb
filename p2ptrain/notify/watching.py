"""Find out what to tell: from the node's series, its control socket, and the end of its journal.

Everything is read. A series that cannot be read, and a node that does not answer, are no news: the
next look tries again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.archive.home import Home, is_in_use
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.notify.causes import LOSSES_USED, cause_of, spikes_in
from p2ptrain.observe.journal import newest_records
from p2ptrain.observe.series import SeriesReader, SeriesUnavailable

OLD_S = 3600.0
"""Age in seconds from which an event is not told: the process did not run when it happened."""

PAGE = 200
ROWS_MAX = 40 * LOSSES_USED
"""Number of newest rows that are read for losses. Only some have a loss on held-out data."""

NAMED_MAX = 3
ASK_S = 2.0
REPLY_BYTES_MAX = 2**20

News = tuple[str, str]
"""A cause, and a text that may contain anything."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the series was read. None: not yet, so that the past is not told."""

    event: int | None = None
    step: int | None = None


class Watcher:
    """Reads the series in `home`, from `place` on. Use it in one thread."""

    def __init__(self, home: Home, place: Place) -> None:
        self.place = place
        self.run = ""
        self._home = home
        self._asked = frozenset[str]()
        self._reader: SeriesReader | None = None
        self._inode, self._version = -1, -1

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def look(self, now: float) -> list[News]:
        """Return what is new in the series. `now` is in Unix seconds."""
        try:
            return list(self._look(now))
        except (SeriesUnavailable, FileNotFoundError):
            self.close()
            return []

    def _look(self, now: float) -> Iterator[News]:
        reader = self._opened()
        version = reader.version()
        if version == self._version:
            return
        newest = max((number for number, _ in reader.events(limit=1)), default=0)
        last = reader.newest_step()
        event, step = self.place.event, self.place.step
        # Smaller numbers mean that the node has begun a new series.
        event = newest if event is None else (0 if newest < event else event)
        step = last if step is None else (0 if last < step else step)
        while page := reader.events_after(event, limit=PAGE):
            event = page[-1][0]
            for _, row in page:
                if (cause := cause_of(row)) and now - row.time < OLD_S:
                    yield cause, row.text
        step, spike = spikes_in(reader.steps_between(0, 1 << 53, limit=ROWS_MAX), step)
        if spike:
            yield "loss-spike", spike
        self.place, self._version = Place(event, step), version

    def _opened(self) -> SeriesReader:
        inode = self._home.series.stat().st_ino
        if self._reader is None or inode != self._inode:
            self.close()
            self._reader = SeriesReader(self._home.series)
            self._inode, self._version, self.run = inode, -1, self._reader.run()
        return self._reader

    def requests(self, ask: Callable[[], list[str]]) -> list[News]:
        """Return the requests to take part that were not there at the last call. `ask` returns the
        ids of the peers that wait."""
        waiting = ask()
        new = [peer for peer in waiting if peer not in self._asked]
        self._asked = frozenset(waiting)
        if not new:
            return []
        names = ", ".join(label(PeerId(peer)) for peer in new[:NAMED_MAX])
        more = f" and {len(new) - NAMED_MAX} more" if new[NAMED_MAX:] else ""
        asks = "asks" if len(new) == 1 else "ask"
        return [("pending", f"{names}{more} {asks} to take part: see `peers pending`.")]


def pending_peers(path: Path) -> list[str]:
    """Ask the node at the control socket `path` which peers wait for the organiser. Return none if
    it does not answer."""
    with suppress(OSError, ValueError, RecursionError, TypeError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX) as asker:
                asker.settimeout(ASK_S)
                # The kernel refuses long paths of sockets.
                asker.connect(f"/proc/self/fd/{folder}/{path.name}")
                asker.sendall(b'{"command": "pending"}\n')
                with asker.makefile("rb") as reply:
                    told = json.loads(reply.readline(REPLY_BYTES_MAX))
        finally:
            os.close(folder)
        found = told.get("pending") if isinstance(told, dict) else None
        return [each for each in found or () if isinstance(each, str)]
    return []


def end_of_node(home: Home, since: float) -> str | None:
    """Return why the node has ended without its owner's wish; "" if the owner ended it, and None if
    it goes on. `since` is the Unix time at which it was known to run."""
    for record in reversed(newest_records(home.journal)):
        time = record.get("time")
        if not isinstance(time, int | float) or time < since:
            break
        if record.get("event") == "stopped":
            code = record.get("code")
            return f"The node has ended: {record.get('reason')} ({code})." if code else ""
    if is_in_use(home.lock):
        return None
    what = "it was killed, or the machine had no memory left"
    return f"The node has ended without a word: {what}."
