"""Lines about tests that pytest runs: whether they exist, and whether they pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.acceptance.measures.setting import ROOT, Line, Setting, line

_COUNTS = re.compile(r"\b(\d+) (passed|failed|error|errors)\b")


def counts_in(text: str) -> dict[str, int]:
    """Return how many tests passed, failed or had errors, over all pytest runs in a log."""
    counts = {"passed": 0, "failed": 0, "error": 0}
    for number, what in _COUNTS.findall(text):
        counts[what.removesuffix("s") if what == "errors" else what] += int(number)
    return counts


def tested(setting: Setting, log: str, name: str, required: str, tests: Sequence[str]) -> Line:
    """Run these test files or tests. Return a line with the name of the measure and what is
    required. If all tests pass, the requirement is met."""
    missing = [each for each in tests if not (ROOT / each.partition("::")[0]).exists()]
    if missing or not tests:
        return line(name, "no test", required, False, missing=missing)
    done = setting.python(log, "-m", "pytest", "-q", *tests)
    counts = counts_in(done.text)
    evidence = "" if done.code == 0 else done.tail
    value = required if done.code == 0 else "the test fails"
    ok = done.code == 0 and counts["passed"] > 0
    return line(name, value, required, ok, tests=counts["passed"], evidence=evidence)


@dataclass(frozen=True, slots=True)
class Claim:
    """A requirement that tests show. `tests` are files, folders or single tests, and `cases_min` is
    how many of them there must be. `takes` says about how long they take, and `log` names the file
    with their output."""

    log: str
    name: str
    required: str
    tests: tuple[str, ...]
    cases_min: int = 1
    takes: str = "1 min"


def claim(which: Claim, setting: Setting) -> Iterator[Line]:
    found = tested(setting, which.log, which.name, which.required, which.tests)
    passed = int(str(found.get("tests", 0)))
    if found["ok"] and passed < which.cases_min:
        found |= {"value": f"{passed} of at least {which.cases_min} cases", "ok": False}
    yield found
