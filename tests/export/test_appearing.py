"""An exported folder becomes visible only when it is complete. Only leftovers of killed writers are
removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p2ptrain.export.atomic_folder import appearing, clear_away

WRITER = """
import signal, sys
from pathlib import Path
from p2ptrain.export.atomic_folder import appearing
with appearing(Path(sys.argv[1])) as partial:
    (partial / "weights").write_text("half")
    print(partial, flush=True)
    signal.pause()
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def writing(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """Return a process in the middle of an export, and its hidden folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()


def test_leftovers_of_a_killed_writer_are_removed_but_not_of_a_live_one(target: Path) -> None:
    process, partial = writing(target)
    assert clear_away(target) == []
    assert (partial / "weights").read_text() == "half"
    killed(process)
    assert clear_away(target) == [partial]
    assert list(target.parent.iterdir()) == []


def test_writer_killed_between_two_renames_loses_no_export(target: Path) -> None:
    with appearing(target) as partial:
        (partial / "weights").write_text("old")
    process, partial = writing(target)
    target.rename(replaced := target.with_name(f".out.replaced-{process.pid}"))
    killed(process)
    assert clear_away(target) == [partial]
    assert (target / "weights").read_text() == "old"
    assert not replaced.exists()


def test_leftovers_of_a_finished_writer_are_removed(target: Path) -> None:
    with appearing(target) as partial:
        (partial / "weights").write_text("new")
    left = target.with_name(".out.replaced-12345")
    left.mkdir()
    assert clear_away(target) == [left]
    assert (target / "weights").read_text() == "new"


def test_folders_with_different_names_are_not_touched(target: Path) -> None:
    others = {".out.partial-", ".out.partial-x", ".outer.partial-1", "out.partial-1"}
    for name in others:
        (target.parent / name).mkdir()
    assert clear_away(target) == clear_away(target / "nowhere" / "deeper") == []
    assert set(os.listdir(target.parent)) == others
