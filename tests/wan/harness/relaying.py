"""Measure what a relay costs, and how exactly it keeps to its limits.

    python -m tests.wan.harness.relaying                   on loopback, without NATs
    python -m tests.wan.harness.relaying --nat sym:sym     in the emulator, as root
    python -m tests.wan.harness.relaying --nat cone:sym --tries 10     only the time to connect
    python -m tests.wan.harness.relaying --nat veth        between network namespaces, as root

With `--nat veth`, there are neither NATs nor delays: virtual network cards connect the three to a
router, and they aggregate packets as real cards do. The emulator's device does not.

Ann and Bob exchange bytes over four streams of one edge through a third process, the relay. The
first line is without limits: CPU seconds of the relay for each GB (at most 0.5). The second is with
an upload limit: the relayed rate relative to a quarter of it. The third is with a daily limit: the
relayed bytes relative to it. Both must be within 10 %. With `--tries`, the only line is the time
until all streams are open, from when both ends have begun. Prints JSON and a table for
docs/results/reach.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from p2ptrain.dataplane import Credentials
from p2ptrain.dataplane.relaying.policy import LIMIT_SHARE
from p2ptrain.identity import Identity
from tests.wan.harness import emulator
from tests.wan.harness.relay_end import NAMES, PORT, write_credentials
from tests.wan.harness.routed_sites import address, routed_sites

VETH = "veth"
NETWORK = ("-n", "3", "-d", "20", "-j", "2")
RELAY_HOST = "10.77.0.1"
CASE_S = 600.0
CPU_S_PER_GB_MAX = 0.5
OFF_MAX = 0.1
CONNECTING_S_MAX = 4.0
CONNECTING_MEGABYTES = 2
"""A piece for each stream."""

SCRIPT = """
run() { $INSIDE$1 "$PYTHON" -m tests.wan.harness.relay_end "${@:2}"; }
[ -n "$INSIDE" ] || run() { "$PYTHON" -m tests.wan.harness.relay_end "${@:2}"; }
run 0 relay "$@" & RELAY=$!
AT=""; [ -z "$INSIDE" ] || AT="${INSIDE}0"
until $AT bash -c "</dev/tcp/$1/$PORT" 2>/dev/null; do sleep 0.2; done
run 2 bob "$@" & BOB=$!
run 1 ann "$@"
wait $BOB $RELAY
"""


def measure(nat: str, folder: Path, *options: str) -> dict[str, float]:
    """Return the numbers of the relay. Raises CalledProcessError if a program fails."""
    words = [str(folder), *options]
    if not nat:
        return _numbers(["bash", "-c", SCRIPT, "bash", "127.0.0.1", *words], "")
    if nat == VETH:
        with routed_sites(3, 4) as sites:
            command = ["bash", "-c", SCRIPT, "bash", address(0, 4), *words]
            return _numbers(command, " ".join(sites.inside(0, [])).removesuffix("0"))
    one, _, other = nat.partition(":")
    command = ["bash", "-c", SCRIPT, "bash", RELAY_HOST, *words]
    command = emulator.words((*NETWORK, "-N", f"{one}:1", "-N", f"{other}:2"), command)
    return _numbers(command, "ip netns exec wan")


def _numbers(command: list[str], inside: str) -> dict[str, float]:
    """Run the command. `inside`, with a node's number, begins the words that run there."""
    setting = ["env", f"PYTHON={sys.executable}", f"INSIDE={inside}", f"PORT={PORT}"]
    done = subprocess.run(
        [*setting, *command], cwd=emulator.ROOT, stdout=subprocess.PIPE, check=True, timeout=CASE_S
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    (found,) = (line for line in lines if line["name"] == "relay")
    found["received"] = sum(line.get("received", 0) for line in lines)
    began_s, open_s = (max(line.get(at, 0.0) for line in lines) for at in ("began_s", "open_s"))
    found["connecting_s"] = open_s - began_s
    return found  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.relaying")
    parser.add_argument("--nat", default="", metavar="NAT:NAT")
    parser.add_argument(
        "--tries", type=int, default=0, help="measure only how long connecting takes"
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--limit-up", type=float, default=40e6, help="bytes per second")
    given = parser.parse_args()
    if given.nat and (missing := emulator.missing()):
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, each in enumerate(NAMES):
            made = Credentials.create(Identity.from_seed(bytes([number + 1]) * 32))
            write_credentials(folder, each, made)
        if given.tries:
            rows = [_connecting(given, folder)]
        else:
            rows = [_cost(given, folder), _rate(given, folder), _day(given, folder)]
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.write("| measure | value | required |\n|---|---|---|\n")
    for row in rows:
        sys.stdout.write(f"| {row['measure']} | {row['value']} | {row['required']} |\n")
    return 0 if all(row["ok"] for row in rows) else 1


def _connecting(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    megabytes = ("--megabytes", str(CONNECTING_MEGABYTES))
    tries = [measure(given.nat, folder, *megabytes) for _ in range(given.tries)]
    times = [found["connecting_s"] for found in tries if found["received"]]
    in_time = sum(each <= CONNECTING_S_MAX for each in times)
    return {
        "measure": "connected in time through a relay",
        "value": f"{in_time} of {given.tries}",
        "required": f"all within {CONNECTING_S_MAX:.0f} s",
        "ok": in_time == given.tries,
        "nat": given.nat,
        "longest_s": round(max(times, default=0.0), 3),
    }


def _cost(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    found = measure(given.nat, folder, "--megabytes", str(given.megabytes))
    assert found["received"] >= 0.99 * given.megabytes * 1e6, found
    cost, rate = found["cpu_s"] / (found["bytes"] / 1e9), found["bytes"] / found["seconds"] / 1e6
    return {
        "measure": f"CPU s per GB ({rate:.0f} MB/s)",
        "value": round(cost, 3),
        "required": f"at most {CPU_S_PER_GB_MAX}",
        "ok": cost <= CPU_S_PER_GB_MAX,
        **found,
    }


def _rate(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    share = LIMIT_SHARE * given.limit_up
    megabytes = str(round(10 * share / 1e6))  # This lasts for ten seconds.
    found = measure(given.nat, folder, "--megabytes", megabytes, "--limit-up", str(given.limit_up))
    relative = found["bytes"] / found["seconds"] / share
    return {
        "measure": "relayed rate relative to its limit",
        "value": round(relative, 3),
        "required": "0.9 to 1.1",
        "ok": abs(relative - 1) <= OFF_MAX,
        **found,
    }


def _day(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    most = given.megabytes * 10**6 // 2
    found = measure(
        given.nat, folder, "--megabytes", str(given.megabytes), "--bytes-per-day", str(most)
    )
    relative = found["bytes"] / most
    return {
        "measure": "relayed bytes relative to the daily limit",
        "value": round(relative, 3),
        "required": "0.9 to 1.1",
        "ok": abs(relative - 1) <= OFF_MAX,
        **found,
    }


if __name__ == "__main__":
    sys.exit(main())
