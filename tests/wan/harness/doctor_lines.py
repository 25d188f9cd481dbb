"""Check what `p2ptrain doctor` says behind each kind of NAT.

    python -m tests.wan.harness.doctor_lines              all kinds
    python -m tests.wan.harness.doctor_lines cone sym

Needs root. The members of a run are those of `verdicts`. Prints a line of JSON for each kind, with
the lines of the doctor that are wrong, and ends with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.wan.harness import emulator
from tests.wan.harness.verdicts import CASES, Network, options
from tests.wan.harness.voter import CONTROL_PORT, DATA_PORT

CLOSED = "members cannot connect to you"
NO_ROUTER = "your router does not open ports by itself"
SWITCHED_OFF = "not tried: you switched it off"

RIGHT: dict[str, dict[str, str]] = {
    "open": {"dial-back": "members connected to both", "NAT kind": "none:", "port mapping": "not"},
    "full": {"dial-back": CLOSED, "NAT kind": "cone:", "port mapping": NO_ROUTER},
    "cone": {"dial-back": CLOSED, "NAT kind": "cone:", "port mapping": NO_ROUTER},
    "cone/rand": {"dial-back": CLOSED, "NAT kind": "cone:", "port mapping": NO_ROUTER},
    "cone/rst": {"dial-back": CLOSED, "NAT kind": "cone:", "port mapping": NO_ROUTER},
    "sym": {"dial-back": CLOSED, "NAT kind": "symmetric:", "port mapping": NO_ROUTER},
    "fw": {"dial-back": CLOSED, "NAT kind": "none:", "port mapping": "not tried"},
    "cone+cone/rand": {"dial-back": CLOSED, "NAT kind": "cone:", "port mapping": NO_ROUTER},
    "half": {"dial-back": "not your data port", "NAT kind": "cone:", "port mapping": SWITCHED_OFF},
    "mapped": {
        "dial-back": "which your router opened by NAT-PMP",
        "NAT kind": "cone: this machine is behind a NAT",
        "port mapping": "your router opened TCP 4201 and 4202 by NAT-PMP",
    },
    "carrier": {
        "dial-back": CLOSED,
        "NAT kind": "cone: this machine is behind two NATs",
        "port mapping": "your provider has another NAT",
    },
}
"""A part of each of the doctor's lines. Unless a router tells its address, a second NAT behind the
first one looks like one NAT."""

DOCTOR_S = 120.0
"""Timeout of the command in seconds. It promises 60 on a machine that is not overloaded."""


def examined(network: Network, name: str) -> dict[str, object]:
    """Run the doctor behind this kind of NAT. Return the lines that are not as in RIGHT."""
    home, place = network.prepared(name)
    command = [sys.executable, "-m", "p2ptrain.cli", "doctor", "--seed", "--json"]
    command += ["--home", str(home), "--bootstrap", network.bootstrap]
    command += ["--listen", f"/ip4/0.0.0.0/tcp/{CONTROL_PORT}"]
    command += ["--data-listen", f"0.0.0.0:{DATA_PORT}"]
    command += [] if CASES[name].asks_router or not CASES[name].forwarded else ["--no-port-mapping"]
    began_s = time.monotonic()
    done = subprocess.run(
        emulator.inside(place, command),
        stdout=subprocess.PIPE,
        text=True,
        timeout=DOCTOR_S,
        env=os.environ | {"XDG_RUNTIME_DIR": str(home)},
        check=False,
    )
    seconds = time.monotonic() - began_s
    said = {each["name"]: each["said"] for each in json.loads(done.stdout)["findings"]}
    wrong = {
        at: said.get(at, "") for at, part in RIGHT[name].items() if part not in said.get(at, "")
    }
    rate = said.get("transfer rate", "")
    return {"case": name, "seconds": round(seconds, 1), "wrong": wrong, "transfer rate": rate}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.doctor_lines")
    parser.add_argument("cases", nargs="*", metavar="KIND", help=", ".join(RIGHT))
    parser.add_argument("--at-once", type=int, default=1, help="doctors at the same time")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names: Sequence[str] = given.cases or list(RIGHT)
    if unknown := [name for name in names if name not in RIGHT]:
        parser.error(f"there is no kind {unknown[0]}; choose from {', '.join(RIGHT)}")
    if not given.inside:
        if missing := emulator.missing():
            sys.stderr.write(f"the emulator cannot run here: {missing}\n")
            return 4
        program = [sys.executable, "-m", "tests.wan.harness.doctor_lines", "--inside"]
        program += ["--at-once", str(given.at_once), *names]
        return subprocess.run(emulator.words(options(names), program), cwd=emulator.ROOT).returncode
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="p2ptrain-doctor-") as folder,
        Network(Path(folder), names, 1) as network,
        ThreadPoolExecutor(given.at_once) as threads,
    ):
        for found in threads.map(lambda name: examined(network, name), names):
            sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            wrong += bool(found["wrong"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
