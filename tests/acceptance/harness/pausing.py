"""Measure a pause with real processes: `python -m tests.acceptance.harness.pausing [--pauses N]`.

A seed and two members with torch train the demo's run. One member is paused and resumed by its own
commands. The program prints a line of JSON for each pause. It says how long the trainer's memory
stayed in use after the order, how long an inner step takes, and how long an idle process with torch
takes to end on this machine. It also says in which outer step the member contributed again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from p2ptrain.config.samples import sample
from p2ptrain.demo.run_file import without_donors
from p2ptrain.testing.node_process import DemoNode, run_command
from tests.patience import Patience

PATIENCE = Patience(600.0)
LOOK_S = 0.01
GO_ON_STEPS = 2
ENDS = 3
IDLE = "import sys, torch; sys.stdout.write('up\\n'); sys.stdout.flush(); sys.stdin.read()"
"""A process that has what every trainer has: torch. It ends when its standard input does."""


def until(holds: Callable[[], object], *nodes: DemoNode) -> None:
    began = time.monotonic()
    ends = began + PATIENCE.limit_s
    while True:
        for node in nodes:
            list(node.new_events())
            assert node.running, node.output()[-2000:]
        if holds():
            return PATIENCE.note(time.monotonic() - began)
        assert time.monotonic() < ends, "\n".join(str(node.events[-5:]) for node in nodes)
        time.sleep(LOOK_S)


def end_of_process_s() -> float:
    """Return how long it takes at most until an idle process with torch has ended, in seconds."""
    found = []
    for _ in range(ENDS):
        with subprocess.Popen(
            [sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            began = time.monotonic()
            process.stdin.close()
            process.wait()
            found.append(time.monotonic() - began)
    return max(found)


def committed(node: DemoNode) -> list[dict[str, Any]]:
    return [event for event in node.events if event["event"] == "committed"]


def newest(node: DemoNode, kind: str) -> float:
    """Return the time of the newest record of this kind, in Unix seconds; 0 if there is none."""
    return max((float(each["time"]) for each in node.events if each["event"] == kind), default=0.0)


def step_of(node: DemoNode) -> int:
    return max((event["step"] for event in committed(node)), default=-1)


def run_file() -> str:
    """Return the demo's run file for a longer run that one member can continue alone."""
    text = without_donors(sample("demo")).replace("limit_mb = 12.0", "limit_mb = 1.0")
    text = re.sub(r"(?m)^steps = 16$", "steps = 500", text)
    return re.sub(r"(?m)^participants_min = \d+", "participants_min = 1", text)


def start(folder: Path) -> tuple[DemoNode, DemoNode, DemoNode]:
    names = ("seed", "ann", "ben")
    nodes = [DemoNode(name, folder / name) for name in names]
    for node in nodes:
        node.home.mkdir(parents=True)
    seed, ann, ben = nodes
    (folder / "run.toml").write_text(run_file())
    ids = [run_command("id", "--home", str(node.home)).strip() for node in nodes]
    allowed = ("--allow", ids[1], "--allow", ids[2])
    words = ("run", "publish", str(folder / "run.toml"), "--home", str(seed.home))
    run_command(*words, "--founder", ids[0], *allowed)
    local = ("--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0")
    seed.start("--seed", *local, "--no-port-mapping")
    status: dict[str, object] = {}

    def seed_is_up() -> bool:
        status.update(seed.status() or {})
        return bool(status.get("addresses"))

    until(seed_is_up, seed)
    addresses = status["addresses"]
    assert isinstance(addresses, list)
    for node in (ann, ben):
        node.start("--bootstrap", addresses[0], *local, "--no-port-mapping", "--device", "cpu")
    return seed, ann, ben


def measure(ann: DemoNode, ben: DemoNode) -> dict[str, Any]:
    """Pause and resume `ben` once, and return what was measured."""
    started = [event for event in ben.events if event["event"] == "trainer-started"][-1]
    processes = [psutil.Process(pid) for pid in started["pids"]]
    held_bytes = sum(each.memory_info().rss for each in processes)
    inner = [event["seconds"] for event in ben.events if event["event"] == "inner-step"]
    # Both times are those of the node's journal, because the command itself takes time to start.
    run_command("pause", "--home", str(ben.home))
    until(lambda: not any(each.is_running() for each in processes), ben)
    until(lambda: newest(ben, "trainer-paused") > newest(ben, "paused"), ben)
    gone, ordered = newest(ben, "trainer-paused"), newest(ben, "paused")
    before = step_of(ann)
    until(lambda: step_of(ann) >= before + GO_ON_STEPS, ann, ben)
    took_part = [event["step"] for event in committed(ben) if event["took_part"]]
    run_command("resume", "--home", str(ben.home))
    at = step_of(ann) + 1
    until(lambda: any(e["took_part"] and e["step"] >= at for e in committed(ben)), ann, ben)
    up = newest(ben, "trainer-up")
    ready_from = 1 + max(
        (event["step"] for event in committed(ben) if event["time"] <= up), default=-1
    )
    again = min(e["step"] for e in committed(ben) if e["took_part"] and e["step"] >= at)
    return {
        "freed_s": round(gone - ordered, 3),
        "inner_step_s": round(statistics.median(inner), 3),
        "inner_step_s_max": round(max(inner), 3),
        "end_of_process_s": round(end_of_process_s(), 3),
        "freed_mb": round(held_bytes / 1e6),
        "steps_of_others": step_of(ann) - before,
        "took_part_while_paused": [step for step in took_part if step > before + 1],
        "outer_step_at_resume": at,
        "outer_step_when_trainer_was_up": ready_from,
        "contributed_to_outer_step": again,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pauses", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-pausing-"))
    nodes = start(folder)
    _, ann, ben = nodes
    ok = True
    try:
        until(lambda: step_of(ann) >= 1 and step_of(ben) >= 1, *nodes)
        for _ in range(given.pauses):
            found = measure(ann, ben)
            due = found["outer_step_when_trainer_was_up"] + 1
            in_time = found["contributed_to_outer_step"] <= due
            found["ok"] = in_time and not found["took_part_while_paused"]
            ok &= bool(found["ok"])
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    finally:
        for node in nodes:
            node.finish(60.0)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
