"""Measure how well four nodes average if three of them are behind NATs and only one can be dialled.

    python -m tests.wan.harness.exchanges                    behind NATs, then all dialable
    python -m tests.wan.harness.exchanges --commits 5 --network nats

Needs root. All four nodes train, with fake trainers, and take part in each exchange. In a ring of
four nodes, at least one pair of neighbours is behind NATs, so these two have to punch holes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median

from p2ptrain.testing.node_process import Event
from tests.wan.harness import emulator
from tests.wan.harness.votes import Voter, commits_of, end_all, prepared, wait_for_commits

NODES = 4
NETWORKS = {
    "nats": ("-N", "cone/rand:1", "-N", "fw:2", "-N", "cone/rst:3"),
    "dialable": (),
}
"""Options of the emulator."""

LINKS = ("-n", str(NODES), "-d", "20", "-j", "2")
FIRST_COMMITS = 3
"""Commits that are not measured, after all nodes have taken part."""

START_S, COMMIT_S = 240.0, 30.0
"""Timeouts in seconds for the first commits, and for each further one."""


def wait_for_all(nodes: list[Voter], deadline_s: float, *, punched: bool) -> None:
    """Wait until each node has taken part in an exchange and, if `punched`, all but the first say
    that they are reached by hole punching. Raises TimeoutError."""
    ends_s = time.monotonic() + deadline_s
    late = list(nodes)
    while late:
        if time.monotonic() > ends_s:
            raise TimeoutError("a node does not take part:\n" + late[0].output()[-2000:])
        time.sleep(0.2)
        for node in nodes:
            for _ in node.new_events():
                pass
        late = [node for node in nodes if not _of(node.events, "exchange-done")]
        late += [node for node in nodes[1:] if punched and not _says_punched(node)]


def _says_punched(node: Voter) -> bool:
    return any(it["verdict"] == "punched" for it in _of(node.events, "reach"))


def run_nodes(folder: Path, network: str, commits: int) -> dict[str, object]:
    """Run the nodes inside the emulated network. Return what was measured after the nodes have
    found out how they are reached."""
    nodes, address = prepared(folder, participants_min=2)
    try:
        for number, node in enumerate(nodes):
            node.launch(number, [address] if number else [], seed=False)
        wait_for_all(nodes, START_S, punched=bool(NETWORKS[network]))
        first = len(commits_of(nodes[0])) + FIRST_COMMITS
        wait_for_commits(nodes[0], first, START_S)
        since_s = commits_of(nodes[0])[first - 1]["monotonic_s"]
        wait_for_commits(nodes[0], first + commits, commits * COMMIT_S)
        return _summary(nodes, since_s)
    finally:
        end_all(nodes)


def _summary(nodes: list[Voter], since_s: float) -> dict[str, object]:
    for node in nodes:
        for _ in node.new_events():
            pass
    events = [[it for it in node.events if it["monotonic_s"] >= since_s] for node in nodes]
    all_events = [it for each in events for it in each]
    started = {_attempt(it): len(it["peers"]) for it in _of(all_events, "exchange-started")}
    exchange_s = [it for each in events for it in _times(each, "exchange-done")]
    connect_s = [it for each in events for it in _times(each, "exchange-connected")]
    failed = [it for each in events for it in _unconnected(each)]
    times = [it["monotonic_s"] for it in commits_of(nodes[0]) if it["monotonic_s"] >= since_s]
    offered = [it for it in _of(all_events, "punched") if "observing_s" in it]
    skipped = [it for it in _of(events[0], "committed") if it["skipped"]]
    return {
        "commits": len(times) - 1,
        "seconds_per_commit": round((times[-1] - times[0]) / (len(times) - 1), 3),
        "skipped_steps": len(skipped),
        "participants": round(fmean(started.values()), 2),
        "attempts": len(started),
        "attempts_lost_to_connecting": len({_attempt(it) for it in failed}),
        "connecting_s": _median_and_max(connect_s),
        "exchange_s": _median_and_max(exchange_s),
        "punched": len(_of(all_events, "punched")),
        "punching_s": _median_and_max([it["seconds"] for it in offered]),
        "of_these_observing_s": _median_and_max([it["observing_s"] for it in offered]),
        "reasons": sorted({it["reason"][:160] for it in failed}),
    }


def _of(events: list[Event], kind: str) -> list[Event]:
    return [it for it in events if it["event"] == kind]


def _attempt(event: Event) -> tuple[int, int]:
    return event["step"], event["attempt"]


def _times(events: list[Event], kind: str) -> list[float]:
    """Return the seconds from the start of each attempt of one node to its event of this kind."""
    started = {_attempt(it): it["monotonic_s"] for it in _of(events, "exchange-started")}
    ended = [it for it in _of(events, kind) if _attempt(it) in started]
    return [it["monotonic_s"] - started[_attempt(it)] for it in ended]


def _unconnected(events: list[Event]) -> list[Event]:
    """Return the attempts of one node that failed before all its connections were open, except
    those that had become useless by then."""
    connected = {_attempt(it) for it in _of(events, "exchange-connected")}
    failed = [it for it in _of(events, "exchange-failed") if _attempt(it) not in connected]
    return [it for it in failed if "agreed to continue" not in it["reason"]]


def _median_and_max(seconds: list[float]) -> list[float]:
    return [round(median(seconds), 3), round(max(seconds), 3)] if seconds else []


def measured(network: str, commits: int) -> dict[str, object]:
    """Run this program inside the emulator. Raises CalledProcessError if it fails."""
    inner = [sys.executable, "-m", "tests.wan.harness.exchanges", "--inside"]
    inner += ["--network", network, "--commits", str(commits)]
    # A node behind a firewall keeps its address. With private addresses, the open node would be in
    # the same local network, and nobody at another site could tell whether it is reached.
    words = emulator.words((*LINKS, *NETWORKS[network]), inner, public=True)
    limit_s = 2 * START_S + commits * COMMIT_S + 60
    done = subprocess.run(
        words, cwd=emulator.ROOT, stdout=subprocess.PIPE, check=True, timeout=limit_s
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return {"network": network} | found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.exchanges")
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        with tempfile.TemporaryDirectory(prefix="p2ptrain-exchanges-") as folder:
            found = run_nodes(Path(folder), given.network[0], given.commits)
            sys.stdout.write(json.dumps(found) + "\n")
        return 0
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    for network in given.network or NETWORKS:
        sys.stdout.write(json.dumps(measured(network, given.commits)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
