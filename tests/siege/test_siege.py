"""A minute of all attacks at once: the short form of scripts/siege, as part of the tests.

It checks only the measures that must hold on a machine of any speed. Only scripts/siege measures
the speed of the run under attack, on an otherwise idle machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.siege.harness.measures import IDLE_MAX

SECONDS = 60
ENDS_S = 540.0
"""Timeout in seconds. Nodes and attackers start within ten seconds on an idle machine, but may need
minutes on a busy one.
"""

EXTRA_S = 200
"""Longest extension of the siege in seconds, until all but IDLE_MAX attacks have happened. An idle
machine needs none."""

INNER_STEP_S = 1.0
"""Long inner steps leave the processor to the attackers, so they need less time for all attacks."""

MUST_HOLD = (
    "nodes ended",
    "false ID-IN-USE reports",
    "problems that honest nodes report",
    "outer steps under siege",
    "RSS growth, MB",
    "logs, MB",
)


def besieged(tmp_path: Path) -> dict[str, dict[str, object]]:
    lines = tmp_path / "lines.jsonl"
    words = ["--seconds", str(SECONDS), "--extra-seconds", str(EXTRA_S), "--no-quiet"]
    words += ["--inner-step-s", str(INNER_STEP_S)]
    words += ["--keep", str(tmp_path / "field")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.siege.harness", *words, "--json", str(lines)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=ENDS_S,
    )
    assert lines.exists(), done.stderr[-4000:]
    found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    return {line["measure"]: line for line in found}


@pytest.mark.needs_torch
def test_strangers_and_a_liar_do_not_end_a_node_or_stop_the_run(tmp_path: Path) -> None:
    found = besieged(tmp_path)
    assert [found[name] for name in MUST_HOLD if not found[name]["ok"]] == []
    happened = found["attacks that happened"]
    idle, counts = happened["idle"], happened["counts"]
    assert isinstance(idle, list)
    assert isinstance(counts, dict)
    assert len(idle) <= IDLE_MAX, happened
    assert counts["strangers' connections"] > 0
