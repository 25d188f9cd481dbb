"""Attack honest nodes and print the results.

    scripts/siege                          ten quiet minutes, then ten minutes of attacks
    scripts/siege --seconds 60             one minute each
    scripts/siege --seconds 60 --no-quiet  attacks only, without a quiet run as baseline
    scripts/siege --only gossip-flood      this attack only

The command prints one line of JSON for each measure to stdout, and a readable summary to stderr.
Its exit status is 1 if a measure is not ok.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.harness.modes import KINDS, STAND_IN
from tests.siege.harness import attackers, measures
from tests.siege.harness.field import INNER_STEP_S, Field, prepared
from tests.siege.harness.measures import IDLE_MAX, Attacks, Measure
from tests.siege.harness.quota import limited
from tests.siege.harness.restarts import restarts
from tests.siege.harness.watch import Phase

CORES = 0.3
"""CPU quota of all attackers together, and of the busy loop in the quiet run."""

CALM_S = 180.0
"""Time limit in seconds for all nodes to start to commit. It allows for load on the machine."""

CALM_STEPS = 2

EXTEND_S = 5.0
"""Seconds by which a siege is extended at a time."""


class NotCalm(Exception):
    """The honest nodes did not begin to commit, although no attack had started yet."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/siege", description="Besiege honest nodes.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, default=10.0, help="length of each phase in minutes (default: 10)"
    )
    length.add_argument("--seconds", type=float, help="length of each phase in seconds")
    parser.add_argument(
        "--extra-seconds",
        type=float,
        default=0.0,
        help="longest extension of the siege, until all but a few attacks have happened",
    )
    parser.add_argument("--trainers", choices=KINDS, default=STAND_IN, help="kind of trainer")
    parser.add_argument(
        "--inner-step-s",
        type=float,
        default=INNER_STEP_S,
        help=f"seconds of an inner step of the stand-ins (default: {INNER_STEP_S})",
    )
    parser.add_argument(
        "--claims", action="store_true", help="the run's contributions are claims, as in new runs"
    )
    parser.add_argument("--no-quiet", action="store_true", help="skip the quiet baseline run")
    parser.add_argument("--only", nargs="+", metavar="ATTACK", help="run only these attacks")
    parser.add_argument("--no-cgroup", action="store_true", help="limit attackers' CPU by signals")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep homes and logs in this folder"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also append the lines to this file"
    )
    return parser.parse_args()


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, _end)
    seconds = given.seconds or 60.0 * given.minutes
    folder = given.keep or Path(tempfile.mkdtemp(prefix="p2ptrain-siege-"))
    try:
        lines = list(_besiege(given, folder, seconds))
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    for line in lines:
        text = json.dumps(line, ensure_ascii=False)
        sys.stdout.write(text + "\n")
        if given.json is not None:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
    for line in lines:
        _say(_in_words(line))
    return 0 if all(line["ok"] for line in lines) else 1


def _besiege(given: argparse.Namespace, folder: Path, seconds: float) -> Iterator[Measure]:
    quiet = None
    if not given.no_quiet:
        quiet, _, _ = _phase(given, folder / "quiet", seconds, attack=False)
    siege, attacks, quota = _phase(given, folder / "siege", seconds, attack=True)
    assert attacks is not None
    about = {"seconds": seconds, "trainers": f"{given.trainers} trainers", "quota": quota}
    about |= {"claims": given.claims}
    for line in measures.invariants(siege, attacks):
        yield line | about
    for line in measures.paces(siege, quiet):
        yield line | about


def _phase(
    given: argparse.Namespace, folder: Path, seconds: float, *, attack: bool
) -> tuple[Phase, Attacks | None, str]:
    """Run one phase from start to end.

    Return the observations, the attackers' counts (None in a quiet run), and the kind of CPU quota.
    """
    folder.mkdir(parents=True)
    settings = {"trainers": given.trainers, "claims": given.claims}
    field = prepared(folder, inner_step_s=given.inner_step_s, **settings)
    try:
        field.start()
        _wait_until_calm(field)
        with limited(CORES, cgroups=not given.no_cgroup) as quota:
            crowd = (
                attackers.Crowd(field, quota, only=given.only) if attack else attackers.Idler(quota)
            )
            try:
                crowd.ready()
                phase = Phase(field)
                what = "siege" if attack else "quiet run"
                _say(f"{what} of {seconds:.0f} s, {given.trainers} trainers; {quota.name}")
                crowd.begin()
                phase.watch(phase.began_s + seconds, restarts(field, phase, seconds))
                _extend(phase, crowd, time.monotonic() + given.extra_seconds)
                used_s = quota.used_s()
            finally:
                crowd.end()
        _say(f"  {phase.steps} outer steps; {quota.name}: used {used_s:.0f} s of CPU")
        return phase, crowd.attacks, quota.name
    finally:
        field.close()


def _extend(phase: Phase, crowd: attackers.Crowd | attackers.Idler, until_s: float) -> None:
    """Continue until all but IDLE_MAX attacks have happened, but at most until `until_s`. On a busy
    machine, the strangers may need minutes to connect with their small share of the CPU.
    """
    while time.monotonic() < until_s:
        if crowd.attacks is None or len(crowd.attacks.idle) <= IDLE_MAX:
            return
        phase.watch(min(time.monotonic() + EXTEND_S, until_s))


def _wait_until_calm(field: Field) -> None:
    """Wait until all nodes have committed CALM_STEPS outer steps.

    Raises NotCalm if a node ends, or if the nodes do not commit in time.
    """
    ends_s = time.monotonic() + CALM_S
    while True:
        field.look()
        last = [
            max((int(e["step"]) for e in node.events if e["event"] == "committed"), default=-1)
            for node in field.nodes
        ]
        if min(last) >= CALM_STEPS:
            return
        ended = [node for node in field.nodes if node.ended]
        if ended or time.monotonic() > ends_s:
            tails = [f"{node.name}: {node.output()[-1500:]}" for node in ended or field.nodes]
            raise NotCalm("the honest nodes do not commit together:\n" + "\n".join(tails))
        time.sleep(0.1)


def _in_words(line: Measure) -> str:
    verdict = "ok  " if line["ok"] else "NOT "
    more = line.get("evidence") or line.get("idle") or line.get("by_node") or ""
    return f"{verdict} {line['measure']}: {line['value']} (required {line['required']}) {more}"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _end(*_: object) -> None:
    """Exit, ignoring further signals: they would interrupt the clean-up and leave nodes running."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
