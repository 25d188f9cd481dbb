"""A folder has so few files that a newcomer can read its list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT, Module, modules, modules_of_tests

FILES_MAX = 24
"""Most Python files of one folder of the package. A larger folder becomes packages."""

TEST_FILES_MAX = 40
"""Most Python files of one folder of the tests."""


def crowded(found: tuple[Module, ...], most: int) -> dict[str, int]:
    """Folders with more than `most` Python files, and how many they have."""
    counts = Counter(str(module.path.parent.relative_to(ROOT)) for module in found)
    return {folder: count for folder, count in counts.items() if count > most}


def test_no_folder_of_the_package_is_crowded() -> None:
    assert crowded(modules(), FILES_MAX) == {}


def test_no_folder_of_the_tests_is_crowded() -> None:
    assert crowded(modules_of_tests(), TEST_FILES_MAX) == {}


@pytest.mark.parametrize(("count", "found"), [(2, {}), (3, {"p2ptrain/full": 3})])
def test_crowded_folders_are_found(count: int, found: dict[str, int]) -> None:
    folder = PACKAGE / "full"
    files = (Module(Path(folder, f"{number}.py"), "", "") for number in range(count))
    assert crowded(tuple(files), 2) == found


def test_every_folder_of_the_package_is_a_package_that_says_what_it_is() -> None:
    folders = {module.path.parent for module in modules()}
    named = [module for module in modules() if module.path.name == "__init__.py"]
    openings = {module.path.parent: module.text for module in named}
    assert [str(each) for each in folders if not openings.get(each, "").startswith('"""')] == []
