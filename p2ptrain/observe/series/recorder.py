"""The thread that owns a node's series.

The node's tasks hand rows over and never wait: if the disk is slow, the rows wait in a bounded
queue, and if the queue is full they are lost and counted. A fault of the disk closes the file, and
the next rows open it again. This module does not know what rows mean.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from p2ptrain.errors import reason_of
from p2ptrain.observe.series.rows import (
    PeerStepRow,
    Row,
    StepRow,
    ToldEventRow,
    ToldRow,
    ToldSampleRow,
)
from p2ptrain.observe.series.thinning import Bounds
from p2ptrain.observe.series.writer import SeriesWriter

WAITING_MAX = 4096
"""Maximum number of batches that wait for the thread: an hour of a busy run, and a replay of
thousands of outer steps."""

CLOSE_S = 5.0
"""Seconds for which closing waits for the rows that are not yet written."""


class SeriesRecorder:
    """Records rows in the series at `path`. Any thread may call `record`.

    `trouble` says in words why rows are being lost; "" if they are not. `notice` says which file
    was put aside. The thread writes both.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        bounds: Bounds | None = None,
        *,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.path = path
        self.trouble = ""
        self.notice = ""
        self.lost = 0
        """Number of batches of rows that could not be written."""
        self._run, self._bounds = run, bounds
        self._waiting: queue.Queue[tuple[str, Sequence[Row]] | None] = queue.Queue(waiting_max)
        self._writer: SeriesWriter | None = None
        # A daemon: a disk that never answers must not keep the node from ending.
        self._thread = threading.Thread(target=self._work, name="series", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def record(self, *rows: Row) -> None:
        """Write `rows` soon, in one transaction. Known values replace those of earlier rows."""
        self._hand_over(("record", rows))

    def fill(self, step: StepRow, peers: Sequence[PeerStepRow]) -> None:
        """Write rows that a member told, where this series has no rows of its own."""
        self._hand_over(("fill", (step, *peers)))

    def tell(self, *rows: ToldRow) -> None:
        """Write events and samples that a member told, except those that are known already."""
        self._hand_over(("tell", rows))

    def forget_after(self, step: int) -> None:
        """Delete the rows of outer steps after `step`: this node has dropped them, because another
        chain outranked its branch."""
        self._hand_over(("forget", (StepRow(step),)))

    @property
    def room(self) -> int:
        """The number of batches that can be handed over before any are lost."""
        return self._waiting.maxsize - self._waiting.qsize()

    def flush(self) -> None:
        """Wait until all rows are written or lost. Only tests wait for that."""
        self._waiting.join()

    def close(self, *, at_most_s: float = CLOSE_S) -> None:
        """Write what waits, close the file and end the thread, for at most `at_most_s` seconds."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=at_most_s)
        self._thread.join(at_most_s)

    def _hand_over(self, batch: tuple[str, Sequence[Row]]) -> None:
        try:
            self._waiting.put_nowait(batch)
        except queue.Full:
            self.lost += 1
            self.trouble = "the disk is too slow"

    def _work(self) -> None:
        while (batch := self._waiting.get()) is not None:
            try:
                self._write(*batch)
                self.trouble = ""
            except (sqlite3.Error, OSError) as exc:
                self.lost += 1
                self.trouble = reason_of(exc)
                self._drop_writer()
            finally:
                self._waiting.task_done()
        self._drop_writer()

    def _write(self, how: str, rows: Sequence[Row]) -> None:
        if self._writer is None:
            self._writer = SeriesWriter(self.path, self._run, self._bounds)
            self.notice = self._writer.notice or self.notice
        if how == "record":
            self._writer.write(rows)
            return
        if how == "tell":
            self._writer.tell(
                [row for row in rows if isinstance(row, ToldEventRow | ToldSampleRow)]
            )
            return
        step, *peers = rows
        assert isinstance(step, StepRow)
        if how == "forget":
            self._writer.forget_after(step.step)
        else:
            self._writer.fill(step, [row for row in peers if isinstance(row, PeerStepRow)])

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(sqlite3.Error):
                writer.close()
