"""Measure how well nodes average if only one of them can be dialled.

    python -m tests.wan.harness.exchanges                    four nodes, then six, in all networks
    python -m tests.wan.harness.exchanges --commits 5 --network nats

Needs root. All nodes train, with fake trainers, and take part in each exchange. All pairs are
neighbours, so each pair behind NATs has to punch holes or to use the relay of the open node.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import fmean, median

from p2ptrain.testing.node_process import Event
from tests.wan.harness import emulator
from tests.wan.harness.votes import Voter, commits_of, measure_networks, prepared, wait_for_commits

NETWORKS: dict[str, tuple[str, ...]] = {
    "nats": ("", "cone/rand", "fw", "cone/rst"),
    "dialable": ("",) * 4,
    "six-nats": ("", "cone/rand", "cone/rand+cone/rand", "sym", "cone/rst", "fw"),
    "six-symmetric": ("", *("sym",) * 5),
    "six-dialable": ("",) * 6,
}
"""The kind of NAT before each node; "" if the node can be dialled."""

VERDICTS = {"nats": "punched", "six-nats": "relayed", "six-symmetric": "relayed"}
"""The right verdict of all nodes behind NATs. In a network with a symmetric NAT, all of them have a
neighbour that they reach through the relay. `verdicts` measures nodes that need neither way."""

OTHER_WAYS = frozenset(VERDICTS.values())

LINKS = ("-d", "20", "-j", "2")
SIX = ("-r", "100")
"""Six nodes have lines of 100 Mbit/s."""

RELAY_EDGES = 10
"""The pairs for which a node relays at a time: those of five nodes. The usual number is two."""

FIRST_COMMITS = 3
"""Commits that are not measured, after all nodes have taken part."""

START_S, COMMIT_S = 240.0, 30.0
"""Timeouts in seconds for the first commits, and for each further one."""


def wait_for_all(nodes: list[Voter], deadline_s: float, *, behind_nats: bool) -> None:
    """Wait until each node has taken part in an exchange and, if `behind_nats`, all but
    the first say that members reach them by other ways than a dial. Raises TimeoutError."""
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
        late += [node for node in nodes[1:] if behind_nats and _verdict_of(node) not in OTHER_WAYS]


def _verdict_of(node: Voter) -> str:
    """Return what the node says now about how others reach it; "" if it has said nothing."""
    return next((str(it["verdict"]) for it in reversed(_of(node.events, "reach"))), "")


def run_nodes(folder: Path, network: str, commits: int) -> dict[str, object]:
    """Run the nodes inside the emulated network. Return what was measured after the nodes have
    found out how they are reached."""
    sites = NETWORKS[network]
    nodes, address = prepared(folder, participants_min=2, count=len(sites))
    try:
        for number, node in enumerate(nodes):
            bootstrap = [address] if number else []
            node.launch(number, bootstrap, seed=False, relay_edges=RELAY_EDGES)
        wait_for_all(nodes, START_S, behind_nats=any(sites))
        first = len(commits_of(nodes[0])) + FIRST_COMMITS
        wait_for_commits(nodes[0], first, START_S)
        since_s = commits_of(nodes[0])[first - 1]["monotonic_s"]
        wait_for_commits(nodes[0], first + commits, commits * COMMIT_S)
        return _summary(nodes, since_s)
    finally:
        for node in nodes:
            node.kill()


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
        "transfer_s": _median_and_max([it for each in events for it in _transfers(each)]),
        "exchange_s": _median_and_max(exchange_s),
        "punched": len(_of(all_events, "punched")),
        "relayed": len(_of(all_events, "relayed")),
        "reused": len(_of(all_events, "edge-reused")),
        "not_reused": sorted({str(it.get("reason")) for it in _of(all_events, "edge-not-reused")}),
        "punching_s": _median_and_max([it["seconds"] for it in offered]),
        "of_these_observing_s": _median_and_max([it["observing_s"] for it in offered]),
        "verdicts": [_verdict_of(node) for node in nodes],
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


def _transfers(events: list[Event]) -> list[float]:
    """Return the seconds from the last connection to the result, for each attempt of one node."""
    open_s = {_attempt(it): it["monotonic_s"] for it in _of(events, "exchange-connected")}
    ended = [it for it in _of(events, "exchange-done") if _attempt(it) in open_s]
    return [it["monotonic_s"] - open_s[_attempt(it)] for it in ended]


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
    # A node behind a firewall keeps its address. With private addresses, the open node would be in
    # the same local network, and nobody at another site could tell whether it is reached.
    sites = NETWORKS[network]
    nats = [word for at, kind in enumerate(sites) if kind for word in ("-N", f"{kind}:{at}")]
    options = ["-n", str(len(sites)), *LINKS, *(SIX if len(sites) == 6 else ()), *nats]
    limit_s = 2 * START_S + commits * COMMIT_S + 60
    arguments = ["--network", network, "--commits", str(commits)]
    found = emulator.result(options, "exchanges", arguments, limit_s, public=True)
    return {"network": network, "load": os.getloadavg()} | found


if __name__ == "__main__":
    sys.exit(measure_networks("exchanges", NETWORKS, run_nodes, measured))
