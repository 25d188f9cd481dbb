"""Long campaigns at twice the speed: ledger and simulator compiled by mypyc, from the same sources.

    python -m p2ptrain.testing.compiling --seeds 100000 --profile chaos --results chaos.jsonl

A run of 100,000 seeds takes hours, most of them the interpreter's. Nothing but such campaigns uses
the compiled copy: it is made beside the sources, and is used only if its reports on a few seeds are
the interpreter's to the last figure. It does not know what the simulator simulates. Planted defects
have no effect on compiled modules, so the mutants run as they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.errors import P2PTrainError

PACKAGE = Path(__file__).resolve().parents[1]

SIMULATION = (
    "accountability amending branches checkers clock disk fairness faults heartbeat liar lines"
    " network node proposals pruner rings run trainer troubles watching world"
).split()
"""What a world is made of; the rest runs once a seed, or patches what is compiled here."""

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
from p2ptrain.testing.simulation import simulate
for profile, seeds in zip(sys.argv[1::2], sys.argv[2::2]):
    for seed in range(int(seeds)):
        print(simulate(seed, peers=5, steps=10, profile=profile))
"""


def compiled_copy(place: Path) -> Path:
    """The root of a copy of this package, compiled and compared; made if it is not there yet.

    Raises P2PTrainError: it cannot be compiled here, or does not behave as the sources do.
    """
    root = place / _digest_of_sources()
    if not root.exists():
        unfinished = root.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(PACKAGE, unfinished / PACKAGE.name, ignore=ignored)
        _run(unfinished, _BUILD, _modules(unfinished), "it cannot be compiled")
        _compare(unfinished)
        unfinished.rename(root)
    return root


def _digest_of_sources() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _modules(root: Path) -> list[str]:
    package = root / PACKAGE.name
    ledger = sorted(set((package / "ledger").glob("*.py")) - {package / "ledger/__init__.py"})
    simulation = [package / f"testing/simulation/{name}.py" for name in SIMULATION]
    return [str(path.relative_to(root)) for path in (*ledger, *simulation)]


def _compare(root: Path) -> None:
    asked = [word for profile, seeds in COMPARED.items() for word in (profile, str(seeds))]
    compiled = _run(root, _REPORTS, asked, "the compiled copy fails")
    if compiled != _run(PACKAGE.parent, _REPORTS, asked, "the simulator fails"):
        raise P2PTrainError("the compiled copy does not behave as the sources do")


def _run(root: Path, program: str, words: Sequence[str], fault: str) -> str:
    command = [sys.executable, "-c", program, *words]
    ended = subprocess.run(
        command, cwd=root, env=_environment(root), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise P2PTrainError(f"{fault}:\n{(ended.stderr or ended.stdout)[-2000:]}")
    return ended.stdout


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}


def main(words: Sequence[str]) -> None:
    try:
        root = compiled_copy(PACKAGE.parent / "build" / "compiled")
    except P2PTrainError as exc:
        sys.exit(f"compiling the simulator: {exc}")
    command = [sys.executable, "-m", "p2ptrain.cli", "simulate", *words]
    os.execve(sys.executable, command, _environment(root))


if __name__ == "__main__":
    main(sys.argv[1:])
