"""Run the simulator at twice the speed: simulator and ledger compiled by mypyc.

    root = compiled_copy(print)
    go_on_with(root, ["simulate", "--seeds", "100000"])

A campaign of 100,000 seeds takes hours, most of them in the interpreter. Only such campaigns use
the compiled copy. It is made in the user's cache, and used only if its reports on a few seeds equal
those of the interpreter exactly. This module does not know what the simulator simulates.

Patches have no effect inside compiled modules, so tests with planted defects use the sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import platformdirs

from p2ptrain.errors import MachineUnfit, P2PTrainError
from p2ptrain.extras import install
from p2ptrain.ledger import core

PACKAGE = Path(__file__).resolve().parents[1]

SIMULATION = (
    "amending checkers/accountability checkers/branches checkers/fairness checkers/lines"
    " checkers/proposals checkers/spec_rules checkers/troubles checkers/watching clock disk faults"
    " heartbeat liars/liar network node pruner rings run trainer world"
).split()
"""The modules to compile. Other modules run once per seed, or patch compiled ones."""

WORTH_SEEDS = 5_000
"""Seeds from which on compiling pays: they take the interpreter ten minutes or more, compiling
takes two or three."""

COMPARED = {"calm": 3, "chaos": 10, "branch": 5, "liars": 5, "amended": 5}
"""Number of seeds per profile whose reports are compared: a few seconds of work."""

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = ["--ignore-missing-imports", "--follow-imports=silent"]
modules = mypycify([*options, *sys.argv[1:]], opt_level="2")
setup(name="compiled", packages=[], ext_modules=modules, script_args=["-q", "build_ext", "-i"])
"""

_REPORTS = """
import sys
from p2ptrain.simulation.compiling import is_compiled
assert is_compiled() == (sys.argv.pop(1) == "compiled")
from p2ptrain.simulation import simulate
for profile, seeds in zip(sys.argv[1::2], sys.argv[2::2]):
    for seed in range(int(seeds)):
        print(simulate(seed, peers=5, steps=10, profile=profile))
"""


def is_compiled() -> bool:
    """Return whether this process runs the compiled copy."""
    return not str(core.__file__).endswith(".py")


def compiled_copy(say: Callable[[str], None]) -> Path:
    """Return the root of a compiled and compared copy of this package; make it if it is missing.

    Copies of older sources stay in the user's cache, because a campaign may be running in one.

    Raises:
        MachineUnfit: the package cannot be compiled here.
        P2PTrainError: the copy does not behave like the sources.
    """
    place = Path(platformdirs.user_cache_dir("p2ptrain", appauthor=False)) / "compiled"
    root = place / _digest_of_sources()
    if not root.exists():
        say(
            "compiling ledger and simulator first: takes one to three minutes, once "
            "(--interpreted avoids it)"
        )
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as folder:
            made = Path(folder) / "copy"
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(PACKAGE, made / PACKAGE.name, ignore=ignored)
            _run(made, _BUILD, _modules(made), "the simulator cannot be compiled here")
            _compare(made)
            try:
                made.rename(root)
            except OSError:
                if not root.exists():  # If it exists, another process has made the same copy.
                    raise
    return root


def go_on_with(root: Path, words: Sequence[str]) -> NoReturn:
    """Replace this process by `p2ptrain WORDS` of this copy. The current folder, which may contain
    the sources, is not on the import path."""
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", "p2ptrain.cli", *words],
        _environment(root),
    )


def _digest_of_sources() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _modules(root: Path) -> list[str]:
    package = root / PACKAGE.name
    ledger = sorted(p for p in (package / "ledger").rglob("*.py") if p.name != "__init__.py")
    simulation = [package / f"simulation/{name}.py" for name in SIMULATION]
    return [str(path.relative_to(root)) for path in (*ledger, *simulation)]


def _compare(root: Path) -> None:
    asked = [word for profile, seeds in COMPARED.items() for word in (profile, str(seeds))]
    compiled = _run(root, _REPORTS, ["compiled", *asked], "the compiled copy fails")
    if compiled != _run(PACKAGE.parent, _REPORTS, ["sources", *asked], "the simulator fails"):
        raise P2PTrainError("the compiled copy does not behave as the sources do")


def _run(root: Path, program: str, words: Sequence[str], fault: str) -> str:
    command = [sys.executable, "-P", "-c", program, *words]
    ended = subprocess.run(
        command, cwd=root, env=_environment(root), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        said = (ended.stderr or ended.stdout)[-2000:].splitlines()
        do = (
            f"{install('mypy')}, and install a C compiler; or use simulate --interpreted, at half "
            "the speed"
        )
        raise MachineUnfit(fault, code="NO-COMPILER", evidence=said, do=do)
    return ended.stdout


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
