"""The measurements for `scripts/accept siege`. They show whether the tests pass on every machine,
and whether a node survives hostile peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.acceptance.measures.attacks import ATTACKS, Attack
from tests.acceptance.measures.pytest_runs import counts_in, tested
from tests.acceptance.measures.setting import ROOT, Line, Measure, Setting, line, objects_in

PIECES = 10
"""Number of parts of a complete run of scripts/test. A log with fewer is not a complete run."""

QUICK_SEEDS = 100
QUICK_SIEGE_S = 60
QUICK_FUZZ_MINUTES = 0.5
FUZZ_MINUTES = 30


@dataclass(frozen=True, slots=True)
class Campaign:
    """Simulated runs of one kind, with many seeds.

    `words` are arguments of `p2ptrain simulate`. If they are empty, the campaign runs the simulator
    of identities, which has no ledger and is not part of that command.
    """

    name: str
    label: str
    words: tuple[str, ...]


FEW_STEPS = ("--steps", "8")
"""A simulated run with Sybils has 8 outer steps, so 10,000 seeds simulate 80,000 outer steps. With
20 outer steps a run takes three to seven times as long, because the pauses between skipped outer
steps double.
"""

CAMPAIGNS = (
    Campaign("identities", "replayed incarnations", ()),
    Campaign("sybils", "Sybils", ("--profile", "sybils", *FEW_STEPS)),
    Campaign("allies", "Sybils and a lying founder", ("--profile", "allies", *FEW_STEPS)),
    Campaign("spoiled-3", "three peers, one liar", ("--profile", "spoiled", "--peers", "3")),
    Campaign("spoiled-5", "five peers, one liar", ("--profile", "spoiled", "--peers", "5")),
)

IDENTITIES = """
import json, sys
from p2ptrain.simulation.identities.world import simulate_identities
seeds, bad = int(sys.argv[1]), []
for seed in range(seeds):
    bad += [(seed, each) for each in simulate_identities(seed).checkers.violations]
print(json.dumps({"seeds": seeds, "violations": len(bad), "stuck": 0, "first": bad[:5]}))
sys.exit(bool(bad))
"""


def tests(setting: Setting) -> Iterator[Line]:
    given = setting.earlier("test")
    if given is None and setting.quick:
        some = ("tests/architecture", "tests/foundation", "tests/ledger")
        done = setting.run("test", "scripts/test", *some)
        text, code = done.text, done.code
    elif given is None:
        done = setting.run("test", "scripts/test")
        text, code = done.text, done.code
    else:
        text, code = given, 0
    counts = counts_in(text)
    whole = setting.quick or text.count("== pytest") + text.count("== mypy") >= PIECES
    bad = counts["failed"] + counts["error"]
    ok = code == 0 and not bad and counts["passed"] > 0 and whole
    value = f"{counts['passed']} passed, {bad} failed"
    yield line("scripts/test", value, "green", ok, whole=whole, read=given is not None)


def demo(setting: Setting) -> Iterator[Line]:
    text = setting.earlier("demo")
    if text is None:
        path = setting.folder / "demo.json"
        done = setting.run("demo", "scripts/demo", "--json", str(path))
        ok, took_s = done.code == 0 and path.exists(), done.seconds
        yield line("scripts/demo", f"status {done.code}", "green", ok, seconds=took_s)
    else:
        ok = '"ok": true' in text
        yield line("scripts/demo", "ok" if ok else "failed", "green", ok, read=True)


def matrix(setting: Setting) -> Iterator[Line]:
    name = "the tests of scripts/test_matrix"
    given = setting.earlier("matrix")
    if given is not None:
        counts = counts_in(given)
        bad = counts["failed"] + counts["error"]
        ok = counts["passed"] > 0 and not bad
        yield line(name, f"{counts['passed']} passed, {bad} failed", "green", ok, read=True)
        return
    words = ["scripts/test_matrix"] + (["-k", "avx2"] if setting.quick else [])
    done = setting.run("matrix", *words)
    tail = "" if done.code == 0 else done.tail
    yield line(name, f"status {done.code}", "green", done.code == 0, evidence=tail)


def attack(which: Attack, setting: Setting) -> Iterator[Line]:
    """Run the tests of one attack."""
    name = f"attack {which.number}: {which.name}"
    yield tested(setting, f"attack-{which.number}", name, "no effect", which.tests)


def siege(setting: Setting) -> Iterator[Line]:
    text = setting.earlier("siege")
    if text is None:
        path = setting.folder / "siege.jsonl"
        length = ["--seconds", str(QUICK_SIEGE_S)] if setting.quick else []
        done = setting.run("siege", "scripts/siege", *length, "--json", str(path))
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if not text:
            yield line("siege", f"status {done.code}", "it runs", False, evidence=done.tail)
    for each in objects_in(text):
        yield each | {"measure": f"siege: {each['measure']}"}


def campaign(which: Campaign, setting: Setting) -> Iterator[Line]:
    seeds = min(setting.seeds, QUICK_SEEDS) if setting.quick else setting.seeds
    label, log = f"simulator: {which.label}", f"simulate-{which.name}"
    if which.words:
        count = ("--seeds", str(seeds), "--processes", str(setting.processes), "--json")
        words = ("-m", "p2ptrain.cli", "simulate", *which.words, *count)
    else:
        words = ("-c", IDENTITIES, str(seeds))
    done = setting.python(log, *words)
    facts = next(iter(reversed(_documents(done.text))), None)
    if facts is None or "seeds" not in facts:
        yield line(label, f"status {done.code}", "0 violations", False, evidence=done.tail)
        return
    bad = int(str(facts.get("violations", -1))) + int(str(facts.get("stuck", -1)))
    enough = int(str(facts["seeds"])) >= seeds
    ok = done.code == 0 and bad == 0 and enough
    asked = {"seeds": facts["seeds"], "seeds_required": setting.seeds}
    yield line(label, bad, "0 violations", ok, **asked)


def _documents(text: str) -> list[dict[str, object]]:
    """Return the JSON objects in a command's output, even one that spans several lines."""
    found = objects_in(text)
    if not found and "{" in text:
        joined = " ".join(text[text.index("{") :].splitlines())
        found = objects_in(joined)
    return found


MUTANT_TESTS = (
    "tests/simulation/test_mutants.py",
    "tests/simulation/test_identities.py",
)
"""Files with tests of planted defects. A test with `defect_is_found` in its name has a case for
each planted defect.
"""


def mutants(setting: Setting) -> Iterator[Line]:
    """Check that the simulators find every planted defect."""
    from tests.simulation.defects.mutants import MUTANTS

    there = [path for path in MUTANT_TESTS if (ROOT / path).exists()]
    done = setting.python("mutants", "-m", "pytest", "-q", *there, "-k", "defect_is_found")
    counts = counts_in(done.text)
    missed = counts["failed"] + counts["error"]
    ok = done.code == 0 and counts["passed"] >= len(MUTANTS) and there == list(MUTANT_TESTS)
    yield line("mutants missed", missed, "0", ok, caught=counts["passed"], files=there)


def fuzz(setting: Setting) -> Iterator[Line]:
    minutes = QUICK_FUZZ_MINUTES if setting.quick else FUZZ_MINUTES
    name, required = "fuzzers, crashes", f"0 in {FUZZ_MINUTES} CPU-minutes"
    text = setting.earlier("fuzz")
    if text is None:
        if not Path(ROOT / "scripts/fuzz").exists():
            yield line(name, "scripts/fuzz is not there", required, False)
            return
        done = setting.run("fuzz", "scripts/fuzz", "--minutes", str(minutes))
        text, code = done.text, done.code
    else:
        code = 0
    lines = objects_in(text)
    ok = code == 0 and all(bool(each.get("ok", True)) for each in lines)
    yield line(name, f"status {code}", required, ok, minutes=minutes, lines=lines[-40:])


MEASURES = (
    Measure("tests", tests),
    Measure("demo", demo),
    Measure("matrix", matrix),
    *(Measure(f"attack {each.number}", partial(attack, each)) for each in ATTACKS),
    Measure("siege", siege),
    *(Measure(f"campaign {each.name}", partial(campaign, each)) for each in CAMPAIGNS),
    Measure("mutants", mutants),
    Measure("fuzz", fuzz),
)
