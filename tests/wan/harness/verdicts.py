"""Measure how fast, and how often rightly, a node behind each kind of NAT says how others reach it.

    python -m tests.wan.harness.verdicts                         5 tries of each kind, then changes
    python -m tests.wan.harness.verdicts --tries 20 cone half    two kinds only
    python -m tests.wan.harness.verdicts --tries 0 --changes 5   only the changes

Needs root. The members of a run, a seed and three nodes with fake trainers, run at four sites all
the time. Each try starts a node with a new identity, and reads the verdicts in its journal. For a
change, a router begins or ceases to forward ports of a node that runs.

`CASES` says which verdict is right for each kind of NAT. Prints a line of JSON for each case, and a
table for docs/results/reach.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.peers.reach_verdict import Reach
from p2ptrain.run import Run, load_allowlist, save_allowlist, save_run
from p2ptrain.testing.published import policy, publish, share_content
from tests.wan.harness import emulator
from tests.wan.harness.reach_node import Outcome, ReachNode, end, watched
from tests.wan.harness.voter import CONTROL_PORT, DATA_PORT

MEMBERS = 4
"""Nodes 0 to 3. The first one is the organiser's seed; the others train."""

BOTH = CONTROL_PORT, DATA_PORT


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of NAT. `forwarded` are the ports that its owner has forwarded by hand; with
    `asks_router`, the node asks the router itself. The verdict must be `reach`, and its sentence
    must contain `words`."""

    nat: str
    reach: Reach
    words: str
    forwarded: tuple[int, ...] = ()
    asks_router: bool = False


CASES = {
    "open": Case("", Reach.OPEN, "directly"),
    "full": Case("full", Reach.CLOSED, "on your router"),
    "cone": Case("cone", Reach.CLOSED, "on your router"),
    "cone/rand": Case("cone/rand", Reach.CLOSED, "on your router"),
    "cone/rst": Case("cone/rst", Reach.CLOSED, "on your router"),
    "sym": Case("sym", Reach.CLOSED, "on your router"),
    "fw": Case("fw", Reach.CLOSED, "in your firewall"),
    "cone+cone/rand": Case("cone+cone/rand", Reach.CLOSED, "on your router"),
    "forwarded": Case("cone/pmp", Reach.OPEN, "directly", forwarded=BOTH),
    "half": Case("cone/pmp", Reach.HALF, "forward TCP 4202 too", forwarded=(CONTROL_PORT,)),
    "mapped": Case("cone/pmp", Reach.MAPPED, "by NAT-PMP", asks_router=True),
    "carrier": Case("cone/pmp+cone/rand", Reach.BLOCKED, "your provider", asks_router=True),
}
"""The right verdicts in a run whose other members can all be dialled. A node behind a NAT dials
them, so it never needs to punch holes or to use a relay. `closed` is then right: no member reaches
it. `exchanges.VERDICTS` has the right verdicts
where members need these ways."""

CHANGES: tuple[tuple[bool, tuple[int, ...], Reach], ...] = (
    (False, BOTH, Reach.OPEN),
    (True, (DATA_PORT,), Reach.HALF),
    (False, (DATA_PORT,), Reach.OPEN),
    (True, BOTH, Reach.CLOSED),
)
"""Whether a router ceases to forward, which ports, and the verdict that is right afterwards. A node
begins as `closed`, and ends as `closed`."""

CHANGING = 4
"""Number of nodes whose routers change, at the same time."""

AT_ONCE = 4
"""Default number of tries at the same time. The start of a node takes seconds of computing."""

VERDICT_S, CHANGE_S = 60.0, 120.0
"""The required times in seconds: from the start of the process, and from a change."""

MEMBERS_S = 120.0


class Network:
    """The members' run, and the places of the nodes under test. Use it inside the emulator."""

    def __init__(self, folder: Path, names: Sequence[str], tries: int) -> None:
        self._folder = folder
        self._hosts: dict[int, str] = {}
        self._places = {name: MEMBERS + at for at, name in enumerate(names)}
        self._homes = {
            (name, count): Home(folder / f"{name.replace('/', '-')}-{count}")
            for name in names
            for count in range(max(tries, 1))
        }
        self._members = [
            ReachNode(f"member{number}", folder / f"member{number}", number)
            for number in range(MEMBERS)
        ]
        peers = [load_or_create(Home(each.home).identity).peer for each in self._members]
        listed = [load_or_create(home.identity).peer for home in self._homes.values()]
        self._run: Run = publish(
            Home(self._members[0].home),
            founders=peers,
            allowed=listed,
            steps=100_000,
            rules=policy(participants_min=2),
            inner_steps=2,
        )
        self.bootstrap = f"/ip4/{self.host_of(0)}/tcp/{CONTROL_PORT}/p2p/{peers[0]}"
        for each in self._members[1:]:
            self._equip(Home(each.home))

    def __enter__(self) -> Network:
        for each in self._members:
            if each.number:
                each.launch(self.host_of(each.number), "--bootstrap", self.bootstrap)
            else:
                each.launch(self.host_of(0), "--seed")
        for each in self._members:
            if not each.wait_for(lambda each=each: is_known(each), MEMBERS_S):  # type: ignore[misc]
                raise TimeoutError(f"a member did not start:\n{each.output()[-2000:]}")
        return self

    def __exit__(self, *raised: object) -> None:
        for each in self._members:
            end(each)

    def attempt(self, name: str, count: int) -> Outcome:
        """Start a node behind this kind of NAT, and judge its verdict."""
        node, case = self.started(name, count), CASES[name]
        try:
            found = watched(node, node.launched_s, case.reach, case.words, VERDICT_S)
            if found.right_s is None and not node.running:
                sys.stderr.write(node.output()[-2000:])
            return found
        finally:
            end(node)
            if case.forwarded:
                self.forward(node.number, "--end", case.forwarded)
            shutil.rmtree(node.home, ignore_errors=True)

    def started(self, name: str, count: int) -> ReachNode:
        case, home, place = CASES[name], self._homes[name, count], self._places[name]
        self._equip(home)
        node = ReachNode(name, home.root, place)
        if case.forwarded:
            self.forward(place, "", case.forwarded)
        asks = ["--map-ports"] * case.asks_router
        node.launch(self.host_of(place), "--seed", *asks, "--bootstrap", self.bootstrap)
        return node

    def prepared(self, name: str) -> tuple[Path, int]:
        """Make a home behind this kind of NAT, and forward its ports. Return the home and the
        node's number, for another program than a node."""
        home, place = self._homes[name, 0].root, self._places[name]
        self.host_of(place)
        if CASES[name].forwarded:
            self.forward(place, "", CASES[name].forwarded)
        return home, place

    def forward(self, place: int, how: str, ports: Sequence[int]) -> None:
        words = [sys.executable, "-m", "tests.wan.harness.forward", *([how] if how else [])]
        subprocess.run(emulator.inside(place, [*words, *map(str, ports)]), check=True, timeout=60)

    def change(self, name: str, count: int) -> list[Outcome]:
        """Let a router change under a node that runs, and judge the verdict after each change."""
        node = self.started(name, count)
        found = list[Outcome]()
        try:
            watched(node, node.launched_s, Reach.CLOSED, "", VERDICT_S)
            for ends, ports, right in CHANGES:
                began_s = time.monotonic()
                self.forward(node.number, "--end" if ends else "", ports)
                found.append(watched(node, began_s, right, "", CHANGE_S))
            return found
        finally:
            end(node)

    def host_of(self, node: int) -> str:
        """Return the node's address. Nodes without a NAT are made to be at sites of their own: the
        network of their interface becomes one address."""
        if node not in self._hosts:
            words = emulator.inside(node, ["ip", "-4", "-o", "addr", "show", "dev", "tun0"])
            line = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
            host = line.split(" inet ")[1].split("/")[0]
            if host.startswith("10.77."):
                for change in (
                    ["addr", "flush", "dev", "tun0"],
                    ["addr", "add", f"{host}/32", "dev", "tun0"],
                    ["route", "replace", "default", "dev", "tun0"],
                ):
                    subprocess.run(["ip", "-n", f"wan{node}", *change], check=True)
            self._hosts[node] = host
        return self._hosts[node]

    def _equip(self, home: Home) -> None:
        organiser = Home(self._members[0].home)
        listed = load_allowlist(organiser.allowlist, self._run)
        assert listed is not None
        save_run(home.manifest, self._run)
        save_allowlist(home.allowlist, listed)
        share_content(home)


def is_known(member: ReachNode) -> bool:
    """Return whether the member has started and takes part: all of them must be up before a node is
    tried, because a node that starts asks those that it finds."""
    return any(each["event"] == "committed" for each in member.events)


def options(names: Sequence[str]) -> list[str]:
    """Return the emulator's options for the members and one place for each of these cases."""
    sites = [
        word
        for place, name in enumerate(names, start=MEMBERS)
        if CASES[name].nat
        for word in ("-N", f"{CASES[name].nat}:{place}")
    ]
    return ["-n", str(MEMBERS + len(names)), "-d", "20", "-j", "2", *sites]


def summary(name: str, found: Sequence[Outcome], limit_s: float) -> dict[str, object]:
    times = [each.right_s for each in found if each.right_s is not None]
    made: dict[str, object] = {
        "case": name,
        "tries": len(found),
        "right": sum(at_s <= limit_s for at_s in times),
        "at_first": sum(len(each.said) == 1 and each.right_s is not None for each in found),
    }
    if times:
        made |= {"median_s": round(median(times), 1), "longest_s": max(times)}
    wrong = {each.said for each in found if each.right_s is None or len(each.said) > 1}
    return made | {"other": sorted(wrong)[:3]}


def row(found: dict[str, object]) -> str:
    times = f"{found['median_s']} ({found['longest_s']})" if "median_s" in found else "–"
    case = CASES.get(str(found["case"]))
    cells = [str(found["case"])] + ([str(case.reach)] if case else [])
    return f"| {' | '.join(cells)} | {found['right']} of {found['tries']} | {times} |"


def try_all(names: Sequence[str], tries: int, at_once: int) -> list[dict[str, object]]:
    """Try each case so often. Only one node at a time is behind one NAT."""
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="p2ptrain-verdicts-") as folder,
        Network(Path(folder), names, tries) as network,
        ThreadPoolExecutor(at_once) as threads,
    ):
        busy = {name: threading.Lock() for name in names}

        def try_one(name: str, count: int) -> None:
            with busy[name]:
                found[name].append(network.attempt(name, count))

        order = [(name, count) for count in range(tries) for name in names]
        for done in [threads.submit(try_one, *each) for each in order]:
            done.result()
    return [summary(name, found[name], VERDICT_S) for name in names]


def change_all(rounds: int) -> list[dict[str, object]]:
    """Let all changes happen so often, at CHANGING nodes at the same time."""
    names = [f"changing{number}" for number in range(CHANGING)]
    found: list[list[Outcome]] = [[] for _ in CHANGES]
    with (
        tempfile.TemporaryDirectory(prefix="p2ptrain-verdicts-") as folder,
        Network(Path(folder), names, rounds) as network,
        ThreadPoolExecutor(CHANGING) as threads,
    ):
        for count in range(rounds):
            for outcomes in threads.map(network.change, names, [count] * CHANGING):
                for each, outcome in zip(found, outcomes, strict=True):
                    each.append(outcome)
    befores = (Reach.CLOSED, *(right for _, _, right in CHANGES))
    return [
        summary(f"{before} → {right}", outcomes, CHANGE_S)
        for before, (_, _, right), outcomes in zip(befores, CHANGES, found, strict=False)
    ]


CASES |= {f"changing{number}": Case("cone/pmp", Reach.CLOSED, "") for number in range(CHANGING)}


def in_emulator(names: Sequence[str], words: Sequence[str]) -> list[dict[str, object]]:
    """Run this program inside the emulator. Raises CalledProcessError if it fails."""
    program = [sys.executable, "-m", "tests.wan.harness.verdicts", "--inside", *words]
    command = emulator.words(options(names), program)
    done = subprocess.run(command, cwd=emulator.ROOT, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    usual = [name for name in CASES if not name.startswith("changing")]
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.verdicts")
    parser.add_argument("cases", nargs="*", metavar="KIND", help=", ".join(usual))
    parser.add_argument("--tries", type=int, default=5, help="tries of each kind")
    parser.add_argument("--changes", type=int, default=2, help="rounds of changes, at four nodes")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="tries at the same time")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.cases or usual
    if unknown := [name for name in names if name not in usual]:
        parser.error(f"there is no kind {unknown[0]}; choose from {', '.join(usual)}")
    if given.inside:
        lines = (
            try_all(names, given.tries, given.at_once) if given.tries else change_all(given.changes)
        )
        sys.stdout.writelines(json.dumps(line) + "\n" for line in lines)
        return 0
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    found = list[dict[str, object]]()
    if given.tries:
        words = ["--tries", str(given.tries), "--at-once", str(given.at_once), *names]
        found += show(in_emulator(names, words))
    if given.changes:
        changing = [name for name in CASES if name not in usual]
        found += show(in_emulator(changing, ["--tries", "0", "--changes", str(given.changes)]))
    sys.stdout.write("\n".join(map(row, found)) + "\n")
    return 0


def show(found: list[dict[str, object]]) -> list[dict[str, object]]:
    sys.stdout.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in found)
    sys.stdout.flush()
    return found


if __name__ == "__main__":
    sys.exit(main())
