"""A siege (honest nodes under attack) is measured correctly: stalls, memory growth, logs, CPU
quotas, and attacks that never happened.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.siege.harness import measures
from tests.siege.harness.measures import Attacks
from tests.siege.harness.quota import limited
from tests.siege.harness.watch import Phase, Sight, longest_gap

SPIN = "while True: pass"


def phase(**sights: Sight) -> Phase:
    made = Phase(SimpleNamespace(nodes=()), began_s=100.0)  # type: ignore[arg-type]
    made.ended_s = 130.0
    made.sights = dict(sights)
    return made


def verdicts(siege: Phase, attacks: Attacks) -> dict[object, object]:
    return {line["measure"]: line["ok"] for line in measures.invariants(siege, attacks)}


def test_longest_gap_can_be_at_the_beginning_or_at_the_end() -> None:
    assert longest_gap([], 100.0, 130.0) == 30.0
    assert longest_gap([90.0, 105.0, 110.0, 140.0], 100.0, 130.0) == 20.0
    assert longest_gap([121.0], 100.0, 130.0) == 21.0


def test_outer_step_counts_when_the_first_node_commits_it() -> None:
    first = Sight("a", commits=[(101.0, 1), (112.0, 2)])
    second = Sight("b", commits=[(103.0, 1), (104.0, 2), (125.0, 3)], down=[(110.0, 111.0)])
    both = phase(a=first, b=second)
    assert (both.steps, both.stall_s) == (3, 21.0)
    assert (both.stall_of_s(first), both.stall_of_s(second)) == (18.0, 6.0)
    assert both.back_after_s(second) is None


def test_memory_growth_is_measured_within_each_process() -> None:
    assert Sight("a", lives=[[100, 90, 130], [50, 55]]).growth_bytes == 30
    assert Sight("a").growth_bytes == 0


def test_every_violation_is_reported() -> None:
    whole = Attacks({"x": 3}, frozenset({"x"}))
    calm = phase(a=Sight("a", commits=[(101.0, 1)]))
    assert all(verdicts(calm, whole).values())
    sights = {
        "nodes ended": Sight("a", commits=[(101.0, 1)], ended=["status 8"]),
        "false ID-IN-USE reports": Sight("a", commits=[(101.0, 1)], namesakes=["x"]),
        "problems that honest nodes report": Sight("a", commits=[(101.0, 1)], troubles=["x"]),
        "RSS growth, MB": Sight("a", commits=[(101.0, 1)], lives=[[0, 51 * 10**6]]),
        "logs, MB": Sight("a", commits=[(101.0, 1)], log_bytes=6 * 10**6),
        "outer steps under siege": Sight("a"),
    }
    for name, sight in sights.items():
        found = verdicts(phase(a=sight), whole)
        assert [each for each, ok in found.items() if not ok] == [name]
    idle = verdicts(calm, Attacks({}, frozenset({"x"})))
    assert [each for each, ok in idle.items() if not ok] == ["attacks that happened"]


def test_siege_slower_than_the_quiet_run_is_reported() -> None:
    quiet = phase(a=Sight("a", commits=[(100.0 + n, n) for n in range(1, 30)]))
    slow = phase(a=Sight("a", commits=[(100.0 + 10 * n, n) for n in range(1, 3)]))
    lines = {line["measure"]: line["ok"] for line in measures.paces(slow, quiet)}
    assert lines["rate of outer steps, relative to a quiet run"] is False
    assert lines["longest stall, s"] is True


@pytest.mark.parametrize("cgroups", [True, False])
def test_quota_limits_the_cpu_time_of_processes(cgroups: bool) -> None:
    """Without a quota, the process would use a whole core."""
    spin = [sys.executable, "-c", SPIN]
    with limited(0.1, cgroups=cgroups) as quota, subprocess.Popen(spin) as bound:
        try:
            begun_s = time.monotonic()
            quota.add(bound.pid)
            with pytest.raises(subprocess.TimeoutExpired):
                bound.wait(1.5)
            used_s, took_s = quota.used_s(), time.monotonic() - begun_s
        finally:
            bound.kill()
            bound.wait()
    assert used_s <= 0.1 * took_s + 0.4
