"""Measure how fast four voters decide if three of them are behind NATs and cannot connect to each
other.

    python -m tests.wan.harness.votes                    behind NATs, then with all voters dialable
    python -m tests.wan.harness.votes --commits 5 --network nats

Needs root. One voter trains alone, with a fake trainer; the others are seeds, so nothing is
averaged and the times depend on the control plane only. Each voter proposes in its turn. A quorum
has three voters, so a voter behind a NAT needs the vote of another one behind a NAT.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.testing.node_process import DemoNode, Event
from p2ptrain.testing.published import copy_run, policy, publish
from tests.wan.harness import emulator

VOTERS = 4
NETWORKS = {
    "nats": ("-N", "cone:1", "-N", "cone/rand:2", "-N", "sym:3"),
    "dialable": (),
}
"""Options of the emulator. `sym` cannot be punched with `cone/rand`."""

LINKS = ("-n", str(VOTERS), "-d", "20", "-j", "2")
PORT = 4201
FIRST_COMMITS = 3
"""Commits that are not measured: the voters are still connecting."""

START_S, COMMIT_S = 180.0, 20.0
"""Timeouts in seconds for the first commits, and for each further one."""


class Voter(DemoNode):
    """One voter, which trains or is a seed."""

    def launch(
        self, number: int, bootstrap: list[str], *, seed: bool, relay_edges: int | None = None
    ) -> None:
        words = [sys.executable, "-m", "tests.wan.harness.voter", "--home", str(self.home)]
        words += ["--host", host_of(number)]
        words += [] if relay_edges is None else ["--relay-edges", str(relay_edges)]
        words += ["--seed"] * seed + ["--bootstrap", *bootstrap]
        # The locks of ports are files, and the nodes have the same port.
        self.run(emulator.inside(number, words), XDG_RUNTIME_DIR=str(self.home))


def host_of(node: int) -> str:
    """Return the address of a node of the emulated network."""
    words = emulator.inside(node, ["ip", "-4", "-o", "addr", "show", "dev", "tun0"])
    line = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return line.split(" inet ")[1].split("/")[0]


def prepared(
    folder: Path, participants_min: int = 1, count: int = VOTERS
) -> tuple[list[Voter], str]:
    """Make the homes of all voters and publish their run. Return the voters and the first one's
    address."""
    homes = [Home(folder / f"voter{number}") for number in range(count)]
    peers = [load_or_create(home.identity).peer for home in homes]
    run = publish(
        homes[0],
        founders=peers,
        steps=100_000,
        rules=policy(participants_min=participants_min),
        inner_steps=2,
    )
    copy_run(homes[0], run, homes[1:])
    voters = [Voter(home.root.name, home.root) for home in homes]
    return voters, f"/ip4/{host_of(0)}/tcp/{PORT}/p2p/{peers[0]}"


def commits_of(voter: Voter) -> list[Event]:
    """Return the committed outer steps, without those that were skipped."""
    ended = [each for each in voter.events if each["event"] == "committed"]
    return [each for each in ended if not each["skipped"]]


def wait_for_commits(voter: Voter, count: int, deadline_s: float) -> None:
    """Wait until the voter's journal has `count` commits. Raises TimeoutError."""
    ends_s = time.monotonic() + deadline_s
    for _ in voter.new_events():
        pass
    while len(commits_of(voter)) < count:
        if time.monotonic() > ends_s:
            found, tail = len(commits_of(voter)), voter.output()[-2000:]
            raise TimeoutError(f"only {found} of {count} commits in time:\n{tail}")
        time.sleep(0.1)
        for _ in voter.new_events():
            pass


def run_voters(folder: Path, network: str, commits: int) -> dict[str, object]:
    """Run the voters inside the emulated network. Return what was measured after FIRST_COMMITS."""
    voters, address = prepared(folder)
    try:
        for number, voter in enumerate(voters):
            voter.launch(number, [address] if number else [], seed=number > 0)
        wait_for_commits(voters[0], FIRST_COMMITS, START_S)
        since_s = commits_of(voters[0])[-1]["monotonic_s"]
        wait_for_commits(voters[0], FIRST_COMMITS + commits, commits * COMMIT_S)
        return _summary(voters, since_s)
    finally:
        for voter in voters:
            voter.kill()


def _summary(voters: list[Voter], since_s: float) -> dict[str, object]:
    for voter in voters[1:]:
        for _ in voter.new_events():
            pass
    events = [it for voter in voters for it in voter.events if it["monotonic_s"] >= since_s]
    times = [it["monotonic_s"] for it in commits_of(voters[0]) if it["monotonic_s"] >= since_s]
    took_s = [later - earlier for earlier, later in pairwise(times)]
    ledger = [it for it in voters[0].events if it["event"] == "decided"]
    decided = [it for it in ledger if it["monotonic_s"] >= since_s]
    late = [it for it in decided if it["round"] > 0]
    voting = min(len(it["voters"]) for it in decided if it["kind"] == "roster")
    return {
        "voters": voting,
        "commits": len(took_s),
        "median_s": round(median(took_s), 3),
        "longest_s": round(max(took_s), 3),
        "heights_with_more_than_one_round": len(late),
        "lost_messages": sum(event["event"] == "message-lost" for event in events),
    }


def measured(network: str, commits: int) -> dict[str, object]:
    """Run this program inside the emulator. Raises CalledProcessError if it fails."""
    options, limit_s = (*LINKS, *NETWORKS[network]), START_S + commits * COMMIT_S + 60
    arguments = ["--network", network, "--commits", str(commits)]
    found = emulator.result(options, "votes", arguments, limit_s)
    return {"network": network} | found


def measure_networks(
    module: str,
    networks: Iterable[str],
    run: Callable[[Path, str, int], dict[str, object]],
    measured: Callable[[str, int], dict[str, object]],
) -> int:
    """Be the command of this `module`: print what `measured` returns for each network, given the
    number of commits. It runs the command again inside the emulator, which then prints what `run`
    returns. Return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.wan.harness.{module}")
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--network", choices=list(networks), action="append")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        with tempfile.TemporaryDirectory(prefix=f"p2ptrain-{module}-") as folder:
            sys.stdout.write(json.dumps(run(Path(folder), given.network[0], given.commits)) + "\n")
        return 0
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    for network in given.network or networks:
        sys.stdout.write(json.dumps(measured(network, given.commits)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(measure_networks("votes", NETWORKS, run_voters, measured))
