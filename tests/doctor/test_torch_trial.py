"""The trial of torch: a package named torch that is missing, broken, crashes or hangs is planted in
the path of real processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from p2ptrain.config.node import NodeConfig
from p2ptrain.doctor.finding import Level
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.doctor.torch_trial import TrialFacts, judge_trial, torch_trial, try_out

ENOUGH_S = 90.0
"""Time for a process to start and to end, even on a busy machine."""
HANG_S = 3.0
"""Time after which a process counts as hanging."""


def trial_with(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float = ENOUGH_S
) -> TrialFacts:
    """Try out a package torch that consists of the program `planted`."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(planted)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return try_out(sys.executable, "cpu", 2, threads=1, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("planted", "code", "said", "fix"),
    [
        (
            'raise ModuleNotFoundError("No module named torch", name="torch")',
            "EXTRA-MISSING",
            "torch is not installed",
            "--seed",
        ),
        (
            'raise ImportError("libcudart.so.12: cannot open shared object file")',
            "TORCH-BROKEN",
            "ImportError: libcudart.so.12: cannot open",
            "install torch again",
        ),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "TORCH-BROKEN",
            "loading torch crashed with SIGSEGV",
            "install torch again",
        ),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
            "TORCH-BROKEN",
            "loading torch crashed with SIGILL",
            "newer processor",
        ),
    ],
    ids=["missing", "broken", "crash", "wrong processor"],
)
def test_planted_torch_gets_its_line_and_its_fix(
    planted: str,
    code: str,
    said: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (found,) = judge_trial(trial_with(planted, tmp_path, monkeypatch))
    assert (found.name, found.level, found.code) == ("torch", Level.FAULT, code)
    assert said in found.said
    assert fix in found.fix


def test_torch_that_hangs_is_killed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = "import threading\nthreading.Event().wait()"
    facts = trial_with(planted, tmp_path, monkeypatch, HANG_S)
    assert facts.status is None
    (found,) = judge_trial(facts)
    assert (found.name, found.code) == ("torch", "TORCH-BROKEN")
    assert "loading torch did not end" in found.said
    left = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert [words for words in left if "device_trial" in words] == []


def test_seed_does_not_need_torch(tmp_path: Path) -> None:
    learned = Learned()
    found = list[object]()
    torch_trial(Subject(NodeConfig(tmp_path, seed=True)), learned, found.append)
    assert len(found) == 1
    assert learned == Learned()


@pytest.mark.needs_torch
def test_torch_of_this_machine_loads_multiplies_and_gathers(tmp_path: Path) -> None:
    facts = try_out(sys.executable, "cpu", 2, threads=1, deadline_s=ENOUGH_S)
    assert facts.status == 0, facts
    assert [(each.name, each.level) for each in judge_trial(facts)] == [
        ("torch", Level.GOOD),
        ("device", Level.GOOD),
        ("all-gather", Level.GOOD),
    ]
    assert facts.done["multiply"]["operations_per_s"] > 1e8
