"""Every folder is small enough for a newcomer to read through its list of files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT, Module, modules, modules_of_tests

FILES_MAX = 24
"""Maximum number of Python files in a folder of the package. Split a larger folder into
packages.
"""

TEST_FILES_MAX = 40
"""Maximum number of Python files in a folder of the tests."""


def crowded(found: tuple[Module, ...], most: int) -> dict[str, int]:
    """Return the folders with more than `most` Python files, with their number of files."""
    counts = Counter(str(module.path.parent.relative_to(ROOT)) for module in found)
    return {folder: count for folder, count in counts.items() if count > most}


def test_no_folder_of_the_package_has_too_many_files() -> None:
    assert crowded(modules(), FILES_MAX) == {}


def test_no_folder_of_the_tests_has_too_many_files() -> None:
    assert crowded(modules_of_tests(), TEST_FILES_MAX) == {}


@pytest.mark.parametrize(("count", "found"), [(2, {}), (3, {"p2ptrain/full": 3})])
def test_folder_with_too_many_files_is_found(count: int, found: dict[str, int]) -> None:
    folder = PACKAGE / "full"
    files = (Module(Path(folder, f"{number}.py"), "", "") for number in range(count))
    assert crowded(tuple(files), 2) == found


def test_every_folder_has_an_init_file_with_a_docstring() -> None:
    folders = {module.path.parent for module in modules()}
    named = [module for module in modules() if module.path.name == "__init__.py"]
    openings = {module.path.parent: module.text for module in named}
    assert [str(each) for each in folders if not openings.get(each, "").startswith('"""')] == []
