"""The repository as data, for the tests in this folder: its modules as syntax trees, and its
texts.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "p2ptrain"


@dataclass(frozen=True)
class Module:
    """One Python file. `name` is dotted, without a final __init__."""

    path: Path
    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree. Most tests look at each of them, and walking takes longer."""
        return _nodes(self.text)

    @property
    def part(self) -> str:
        """The name of the subpackage of p2ptrain, which has a rank in the import order; "" for the
        package itself.
        """
        return (*self.name.split("."), "")[1]

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(text)))


@lru_cache(maxsize=1)
def modules() -> tuple[Module, ...]:
    """Return all modules of p2ptrain."""
    return tuple(_module(path) for path in sorted(PACKAGE.rglob("*.py")))


@lru_cache(maxsize=1)
def modules_of_tests() -> tuple[Module, ...]:
    """Return all modules of the tests."""
    return tuple(_module(path) for path in sorted((ROOT / "tests").rglob("*.py")))


HARNESSES = "harness", "measures", "transcript_player", "defects"
"""Test folders that contain programs. The rules for the package also apply to them."""


@lru_cache(maxsize=1)
def programs() -> tuple[Module, ...]:
    """Return all modules to which the rules for programs apply: p2ptrain, scripts/, and the test
    harnesses.
    """
    research = (_module(path) for path in sorted((ROOT / "scripts").rglob("*.py")))
    harnesses = (each for each in modules_of_tests() if is_harness(each))
    return (*modules(), *research, *harnesses)


def is_harness(module: Module) -> bool:
    return bool(set(HARNESSES) & set(module.path.relative_to(ROOT).parts))


def _module(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(path, name, path.read_text(encoding="utf-8"))


def imports(module: Module) -> Iterator[str]:
    """Yield every dotted name that the module imports, at its top or inside functions.

    `from a import b` counts as a.b, since b may be a module.
    """
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.where}: use an absolute import here"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def definitions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


@lru_cache(maxsize=1)
def tracked_texts() -> tuple[tuple[str, str], ...]:
    """Return (path, text) of all text files that belong to the repository, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    found = []
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                found.append((name, path.read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue
    return tuple(found)
