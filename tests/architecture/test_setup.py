"""scripts/setup reports a missing tool in one line, and installs pinned versions only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PIN = re.compile(r"([A-Za-z0-9_.-]+)==([0-9][0-9a-z.]*)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert None not in found, "every line must be of the form NAME==VERSION"
    pairs = [(normal(match[1]), match[2]) for match in found if match is not None]
    assert len(dict(pairs)) == len(pairs), "a package is pinned twice"
    return dict(pairs)


def test_all_dependencies_of_the_project_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["checks"]]
    names = {normal(re.split(r"[=<>~!; ]", each)[0]) for each in asked}
    assert names - set(pins()) == {"torch"}


def test_pinned_libp2p_is_the_version_that_our_patches_are_for() -> None:
    assert (pins()["libp2p"], pins()["fastecdsa"]) == ("0.8.1", "4.0.0")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a new folder with copies of the files that scripts/setup needs."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_incomplete_environment_is_created_again(checkout: Path) -> None:
    """An interrupted setup can leave an environment that has Python but not pip. CC names no
    compiler, so setup stops before it downloads anything.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    environment = os.environ | {"P2PTRAIN_PYTHON": sys.executable, "CC": "no-such-compiler"}
    done = subprocess.run(
        ["bash", "-x", checkout / "scripts" / "setup"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "\n+ make_environment\n" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("CC", "no-such-compiler", "no C compiler (no-such-compiler): install gcc or clang"),
        ("P2PTRAIN_PYTHON", "/bin/false", "is not a Python 3.11, 3.12 or 3.13 with venv"),
    ],
)
def test_missing_tool_is_reported_in_one_line_before_downloads(
    checkout: Path, setting: str, value: str, said: str
) -> None:
    environment = os.environ | {"P2PTRAIN_PYTHON": sys.executable, setting: value}
    done = subprocess.run(
        [checkout / "scripts" / "setup"],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("setup: error: ")
    assert said in line
    assert not (checkout / ".venv").exists()
