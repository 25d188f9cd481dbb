"""Measure the page of a run with 24 peers and 600 outer steps: how soon it shows a commit, what a
reader costs in bytes, and what it costs the node in processor time.

    python -m tests.web.harness.page_costs             # five minutes without, and with a reader
    python -m tests.web.harness.page_costs --seconds 60
    python -m tests.web.harness.page_costs --readers 32     # as many as are served at once

The history is made (`p2ptrain.testing.series_history`). The node is real except that it does not
train: `page_node`. An outer step ends every six seconds, so an hour has 600 of them. The program
prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import trio

from p2ptrain.observe.series.rows import EventRow, FactRow, Row, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.testing.series_history import history, write_history
from tests.web.serving import Events, parsed

STEPS = 600
STEP_S = 6.0
LOADED = ("/", "/api/v1/series?points=800", "/api/v1/events?limit=200", "/api/v1/samples")
"""Paths that the page reads once, when it is opened."""


@dataclass
class Found:
    """The results of a measurement with a reader. `late_s` has a number for each commit."""

    late_s: list[float] = field(default_factory=list)
    loaded_bytes: int = 0
    streamed_bytes: int = 0
    committed_s: dict[int, float] = field(default_factory=dict)


class Process:
    """A process that answers lines."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def cpu_s(self) -> float:
        """Return the processor time of `page_node`."""
        assert self._process.stdin is not None
        self._process.stdin.write("cpu\n")
        self._process.stdin.flush()
        return float(self.line())

    def cpu_of_tree_s(self) -> float:
        """Return the processor time of any process, from /proc."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def processes(folder: Path, peers: int) -> Iterator[tuple[Process, Process, Path, str, int]]:
    node = Process("tests.web.harness.page_node", str(folder), "--peers", str(peers))
    home, run = Path(node.line()), node.line()
    write_history(home / "series.db", run, peers=peers, steps=STEPS)
    page = Process("p2ptrain.web", "--home", str(home), "--port", "0", "--attached")
    try:
        yield node, page, home, run, int(page.line().removeprefix("port "))
    finally:
        page.end()
        node.end()


def commits(peers: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield outer steps after those of the history, as if they ended now."""
    for rows in list(history(peers, STEPS))[-100:]:
        shifted: list[Row] = []
        for row in rows:
            assert not isinstance(row, FactRow), "an outer step has no facts about the run"
            moved = replace(row, step=row.step + 100)
            if isinstance(moved, StepRow | EventRow):
                moved = replace(moved, time=time.time())
            shifted.append(moved)
        if steps := [row.step for row in shifted if isinstance(row, StepRow)]:
            yield steps[0], shifted


async def request(port: int, path: str) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(asking(port, path, "close"))
        return b"".join([piece async for piece in stream])


def asking(port: int, path: str, connection: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept-encoding: gzip\r\n"
        f"connection: {connection}\r\n\r\n"
    ).encode()


async def read_page(
    port: int, home: Path, run: str, peers: int, seconds: float, readers: int
) -> Found:
    """Open the page, and read its stream while outer steps end. The other readers only follow the
    stream."""
    found = Found()
    for path in LOADED:
        answer = await request(port, path)
        assert parsed(answer)[0] == 200, path
        found.loaded_bytes += len(answer)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(asking(port, "/api/v1/stream", "keep-alive"))
        events = Events(stream, compressed=True)
        await events.next("state")
        first_bytes = events.bytes_read
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_steps, events, found)
            for _ in range(readers - 1):
                nursery.start_soon(follow, port)
            with trio.move_on_after(seconds):
                await commit(home, run, peers, found)
            nursery.cancel_scope.cancel()
        found.loaded_bytes += first_bytes
        found.streamed_bytes = events.bytes_read - first_bytes
    return found


async def follow(port: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(asking(port, "/api/v1/stream", "keep-alive"))
        async for _ in stream:
            pass
    raise AssertionError("the page has closed a stream")


async def note_steps(events: Events, found: Found) -> None:
    seen = set[int]()
    while True:
        told = await events.next("step")
        step = told["step"]["step"]
        if step in found.committed_s and step not in seen:
            seen.add(step)
            found.late_s.append(trio.current_time() - found.committed_s[step])


async def commit(home: Path, run: str, peers: int, found: Found) -> None:
    """End an outer step every `STEP_S`. Reports arrive two seconds after the commit."""
    writer = SeriesWriter(home / "series.db", run)
    try:
        for step, rows in commits(peers):
            await trio.sleep(STEP_S - 2)
            found.committed_s[step] = trio.current_time()
            writer.write([row for row in rows if isinstance(row, StepRow)])
            await trio.sleep(2)
            writer.write([row for row in rows if not isinstance(row, StepRow)])
    finally:
        writer.close()


def measure(peers: int, seconds: float, readers: int = 1) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="p2ptrain-page-") as folder:
        opened = processes(Path(folder), peers)
        with opened as (node, page, home, run, port):
            time.sleep(2.0)
            idle_from = node.cpu_s()
            time.sleep(seconds)
            idle_s = node.cpu_s() - idle_from
            node_from, page_from = node.cpu_s(), page.cpu_of_tree_s()
            found = trio.run(partial(read_page, port, home, run, peers, seconds, readers))
            read_s = node.cpu_s() - node_from
            page_s = page.cpu_of_tree_s() - page_from
    streamed = found.streamed_bytes * 3600 / seconds
    return {
        "peers": peers,
        "steps": STEPS,
        "seconds": seconds,
        "readers": readers,
        "commits": len(found.committed_s),
        "seen": len(found.late_s),
        "late_s": [round(median(found.late_s), 3), round(max(found.late_s), 3)],
        "loaded_bytes": found.loaded_bytes,
        "bytes_per_hour": round(found.loaded_bytes + streamed),
        "node_cpu_share": round((read_s - idle_s) / seconds, 5),
        "node_cpu_share_idle": round(idle_s / seconds, 5),
        "page_cpu_share": round(page_s / seconds, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.web.harness.page_costs")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--peers", type=int, default=24)
    parser.add_argument("--readers", type=int, default=1)
    given = parser.parse_args()
    told = measure(given.peers, given.seconds, given.readers)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
