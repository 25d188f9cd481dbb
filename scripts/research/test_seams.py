"""Count where tests reach into what they test: private attributes, private imports, and patches.

A test that reads `thing._field` or replaces a module's constant depends on how the code is written,
not on what it promises. The remedy is a seam: an argument, or a small object that a test can make.
Run `python scripts/research/test_seams.py` for the totals, and with `--by-file` for the files.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"

PATCHES = ("setattr", "setitem", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def found_in(tree: ast.Module) -> Iterator[str]:
    """The kind of each place: `private` or `patch`. An object's own `self._field` does not
    count."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                yield "private"
            case ast.ImportFrom(names=names):
                yield from ("private" for each in names if is_private(each.name))
            case ast.Call(func=ast.Attribute(attr=called, value=ast.Name(id="monkeypatch"))):
                if called in PATCHES:
                    yield "patch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by-file", action="store_true", help="one line for each file")
    given = parser.parse_args()
    counts = {
        path.relative_to(TESTS.parent): Counter(found_in(ast.parse(path.read_text("utf-8"))))
        for path in sorted(TESTS.rglob("*.py"))
    }
    if given.by_file:
        for path, found in sorted(counts.items(), key=lambda item: -item[1].total()):
            if found:
                sys.stdout.write(
                    f"{found['private']:4} private {found['patch']:4} patches  {path}\n"
                )
    total = sum(counts.values(), Counter[str]())
    sys.stdout.write(f"{total['private']:4} private {total['patch']:4} patches  in total\n")


if __name__ == "__main__":
    main()
