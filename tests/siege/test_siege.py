"""A minute of all attacks at once: the short form of scripts/siege, for every run of the tests.

It asserts what must hold at any speed. Only scripts/siege measures the speed of the run under
attack, on a machine that does nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 60
ENDS_S = 540.0
"""Nodes and attackers start in ten seconds on a quiet machine, and in minutes on a crowded one."""

IDLE_MAX = 8
"""On a crowded machine a few of the forty attacks do not happen within a minute."""

MUST_HOLD = (
    "nodes ended",
    "wrong ID-IN-USE",
    "honest nodes' own troubles",
    "outer steps under siege",
    "RSS growth, MB",
    "logs, MB",
)


def besieged(tmp_path: Path) -> dict[str, dict[str, object]]:
    lines = tmp_path / "lines.jsonl"
    words = ["--seconds", str(SECONDS), "--no-quiet", "--keep", str(tmp_path / "field")]
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


def test_strangers_and_a_liar_end_no_node_and_stop_no_run(tmp_path: Path) -> None:
    found = besieged(tmp_path)
    assert [found[name] for name in MUST_HOLD if not found[name]["ok"]] == []
    happened = found["attacks that happened"]
    idle, counts = happened["idle"], happened["counts"]
    assert isinstance(idle, list)
    assert isinstance(counts, dict)
    assert len(idle) <= IDLE_MAX, happened
    assert counts["strangers' connections"] > 0
