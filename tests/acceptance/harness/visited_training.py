"""Measure whether 500 clients of a node's page slow its training down:
`python -m tests.acceptance.harness.visited_training [--trainers N] [--pairs N] [--seconds S]`.

Real nodes train in this process, with their ledger, exchanges and sockets. The page of one of them
is the process that every node starts. Only the trainer is a stand-in: a thread whose inner steps
are a fixed amount of work for the processor, outside the interpreter's lock. Times without and with
the clients alternate (A B B A A B …), so that slow changes of the machine cancel out. While the
standard error is too large, there are more pairs of times, up to `MORE` times as many.

The program prints one line of JSON. `ratio` is the rate of inner steps with the clients, divided by
the rate without them: the mean of all pairs of times, with its standard error. `steps_per_cpu_s`
has the inner steps for each second of the trainers' processor time, without and with the clients.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import psutil
import trio

from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, swarm

CLIENTS = 500
WORK_ROUNDS = 60_000
"""Rounds of the work of an inner step: some 30 ms of processor time."""

INNER_STEPS = 40
"""Inner steps of an outer step: about a second. Exchanges then take a tenth of the time."""

ERROR_MAX = 0.005
"""Standard error of the ratio with which the requirement of 1 % can be judged."""

MORE = 3

SETTLE_S = 3.0
"""Seconds before each measured time, in which clients come or go."""


@dataclass
class Work:
    """The work of the stand-in trainers, and the processor time that it took."""

    steps: int = 0
    cpu_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> None:
        began = time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"work", b"salt", WORK_ROUNDS)
        with self.lock:
            self.steps += 1
            self.cpu_s += time.thread_time() - began


@dataclass(frozen=True, slots=True)
class Span:
    """The counts of a measured time. `node_cpu_s` is the processor time of this process without
    the trainers' work."""

    seconds: float
    steps: int
    work_cpu_s: float
    node_cpu_s: float
    page_cpu_s: float
    clients_cpu_s: float

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


@dataclass
class Measured:
    work: Work
    page: psutil.Process
    clients: psutil.Process

    def now(self) -> tuple[float, ...]:
        page, clients = (each.cpu_times() for each in (self.page, self.clients))
        return (
            time.monotonic(),
            self.work.steps,
            self.work.cpu_s,
            time.process_time() - self.work.cpu_s,
            page.user + page.system,
            clients.user + clients.system,
        )

    async def span(self, seconds: float) -> Span:
        before = self.now()
        await trio.sleep(seconds)
        told = [after - each for after, each in zip(self.now(), before, strict=True)]
        return Span(told[0], int(told[1]), *told[2:])


class Clients:
    """The process of the clients."""

    def __init__(self, port: int) -> None:
        words = [
            "-m",
            "tests.acceptance.harness.page_clients",
            str(port),
            "--clients",
            str(CLIENTS),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, *words], text=True, **pipes)  # type: ignore[call-overload]
        self.told = dict[str, int]()

    async def order(self, word: str) -> dict[str, int]:
        """Let the clients come or go. Return the account that they give first."""

        def ask() -> str:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
            return str(self.process.stdout.readline())

        found: dict[str, int] = json.loads(await trio.to_thread.run_sync(ask))
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@asynccontextmanager
async def training(
    folder: Path, trainers: int, work: Work
) -> AsyncIterator[tuple[Swarm, dict[str, int]]]:
    """Let `trainers` nodes train, of which the first has a page. Yield the page's port and
    process id too."""
    names = tuple(f"node{number}" for number in range(trainers))
    rules = policy(participants_min=1, grace_s=5.0)
    settings: dict[str, Any] = {"steps": 1_000_000, "inner_steps": INNER_STEPS, "rules": rules}
    async with swarm(folder, nodes=(), later=names, keep_snapshots=2, **settings) as s:
        for name in names:
            s[name].remote.work = work
        s[names[0]].config = replace(s[names[0]].config, page_port=0)
        await s.start(*names)
        page = s[names[0]].home.page
        await s.until(lambda: page.exists() and page.stat().st_size)
        await s.until(lambda: all(len(s.credits(name)) >= 2 for name in names))
        yield s, json.loads(page.read_text())


async def measure(trainers: int, pairs: int, seconds: float) -> dict[str, object]:
    work = Work()
    spans: dict[bool, list[Span]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="p2ptrain-visited-") as folder:
        async with training(Path(folder), trainers, work) as (s, page):
            clients = Clients(page["port"])
            try:
                measured = Measured(
                    work, psutil.Process(page["pid"]), psutil.Process(clients.process.pid)
                )
                told = await take_spans(measured, clients, spans, pairs, seconds)
                step = max(node.step for node in s.up)
            finally:
                clients.end()
    return {"trainers": trainers, "outer_steps": step, **told, **summary(spans, seconds)}


async def take_spans(
    measured: Measured,
    clients: Clients,
    spans: dict[bool, list[Span]],
    pairs: int,
    seconds: float,
) -> dict[str, int]:
    """Measure `pairs` pairs of times, or more. Return how many clients were served and refused at
    the least and at the most, and the number of refusals."""
    served, refusals, here = set[int](), 0, False
    for number in count():
        if number % 2 == 0 and is_enough(spans, pairs):
            break
        comes = number % 4 in (1, 2)
        if comes != here:
            await clients.order("come" if comes else "go")
        here = comes
        await trio.sleep(SETTLE_S)
        spans[comes].append(await measured.span(seconds))
        account = await clients.order("say")
        if comes:
            served.add(account["served"])
            refusals += account["refusals"]
    return {
        "clients": CLIENTS,
        "served_min": min(served),
        "served_max": max(served),
        "refusals": refusals,
    }


def is_enough(spans: dict[bool, list[Span]], pairs: int) -> bool:
    """Return whether there are enough pairs of times. The ratio itself does not decide."""
    done = len(spans[True])
    return done >= pairs and (standard_error(ratios_of(spans)) <= ERROR_MAX or done >= MORE * pairs)


def ratios_of(spans: dict[bool, list[Span]]) -> list[float]:
    return [b.rate / a.rate for a, b in zip(spans[False], spans[True], strict=True)]


def standard_error(ratios: list[float]) -> float:
    return stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("inf")


def summary(spans: dict[bool, list[Span]], seconds: float) -> dict[str, object]:
    """Return the results of all times, in pairs (without, with clients)."""
    ratios = ratios_of(spans)

    def both(value: str, of: str = "seconds") -> list[float]:
        sums = [
            sum(getattr(each, value) for each in spans[who])
            / sum(getattr(each, of) for each in spans[who])
            for who in (False, True)
        ]
        return [round(each, 4) for each in sums]

    return {
        "cores": os.cpu_count(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "pairs": len(ratios),
        "seconds": seconds,
        "ratio": round(fmean(ratios), 4),
        "ratio_error": round(standard_error(ratios), 4),
        "ratios": [round(each, 4) for each in ratios],
        "steps_per_s": both("steps"),
        "steps_per_cpu_s": both("steps", "work_cpu_s"),
        "work_cpu_share": both("work_cpu_s"),
        "node_cpu_share": both("node_cpu_s"),
        "page_cpu_share": both("page_cpu_s"),
        "clients_cpu_share": both("clients_cpu_s"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    found = trio.run(partial(measure, given.trainers, given.pairs, given.seconds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
