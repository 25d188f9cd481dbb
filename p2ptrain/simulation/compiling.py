"""The simulator at twice the pace: it and the ledger compiled by mypyc, from the same sources.

    root = compiled_copy(print)
    go_on_with(root, ["simulate", "--seeds", "100000"])

A campaign of 100,000 seeds takes hours, most of them the interpreter's. Nothing but such campaigns
uses the compiled copy: it is made beside the sources, and is used only if its reports on a few
seeds are the interpreter's to the last figure. It does not know what the simulator simulates.
Planted defects have no effect on compiled modules, so the mutants run as they are.
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
    "accountability amending branches checkers clock disk fairness faults heartbeat liar lines"
    " network node proposals pruner rings run trainer troubles watching world"
).split()
"""What a world is made of; the rest runs once a seed, or patches what is compiled here."""

WORTH_SEEDS = 5_000
"""So many take the interpreter ten minutes or more; compiling takes two or three."""

COMPARED = {"calm": 3, "chaos": 10, "branch": 5, "liars": 5, "amended": 5}
"""Seeds by profile whose reports must be the same: a few seconds of both."""

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
    """Whether this process runs the compiled copy."""
    return not str(core.__file__).endswith(".py")


def compiled_copy(say: Callable[[str], None]) -> Path:
    """The root of a copy of this package, compiled and compared; made if it is not there yet.

    Copies of other sources stay in the user's cache: somebody's campaign may be under way in one.

    Raises:
        MachineUnfit: it cannot be compiled here.
        P2PTrainError: it does not behave as the sources do.
    """
    place = Path(platformdirs.user_cache_dir("p2ptrain", appauthor=False)) / "compiled"
    root = place / _digest_of_sources()
    if not root.exists():
        say("compiling ledger and simulator first: a minute or three, once (--interpreted: not)")
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as folder:
            made = Path(folder) / "copy"
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(PACKAGE, made / PACKAGE.name, ignore=ignored)
            _run(made, _BUILD, _modules(made), "it cannot be compiled here")
            _compare(made)
            try:
                made.rename(root)
            except OSError:
                if not root.exists():  # Else another process has made the same meanwhile.
                    raise
    return root


def go_on_with(root: Path, words: Sequence[str]) -> NoReturn:
    """Be `p2ptrain WORDS` of this copy from now on. What is in the current folder, maybe the
    sources, does not come before it."""
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
        do = f"{install('mypy')}, have a C compiler; or simulate --interpreted, at half the pace"
        raise MachineUnfit(fault, code="NO-COMPILER", evidence=said, do=do)
    return ended.stdout


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
