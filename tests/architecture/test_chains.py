"""A reader can follow a folder from its top to its bottom: no circles, and short chains."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.sources import Module, modules

CHAIN_MAX = {"node": 9}
"""The most modules of a part in a chain in which each imports the next."""


def runtime_imports(module: Module) -> Iterator[str]:
    """The dotted names that `module` imports when it runs, so not for the type checker alone."""
    waiting: list[ast.AST] = [module.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
        waiting += ast.iter_child_nodes(node)


def graph_of(part: str) -> dict[str, set[str]]:
    """Each module of a part with the modules of the same part that it imports."""
    names = {module.name for module in modules() if module.part == part}
    graph: dict[str, set[str]] = {}
    for module in modules():
        if module.part == part:
            found = (
                name if name in names else name.rpartition(".")[0]
                for name in runtime_imports(module)
            )
            graph[module.name] = {name for name in found if name in names} - {module.name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The pairs of modules, or of folders, that import each other, directly or over others."""

    @cache
    def below(name: str) -> frozenset[str]:
        seen: set[str] = set()
        waiting = list(graph[name])
        while waiting:
            if (each := waiting.pop()) not in seen:
                seen.add(each)
                waiting += graph.get(each, ())
        return frozenset(seen)

    return [(a, b) for a in graph for b in below(a) if a < b and a in below(b)]


def longest(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """A longest chain of imports."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(each) for each in sorted(graph[name])), key=len, default=()))

    return max((chain(name) for name in graph), key=len)


def folders_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph of the folders of a part. A module beside the folders counts as none."""

    def folder(name: str) -> str:
        return ".".join(name.split(".")[:3]) if name.count(".") > 2 else ""

    found: dict[str, set[str]] = {folder(name): set() for name in graph}
    for name, imported in graph.items():
        found[folder(name)] |= {folder(each) for each in imported} - {folder(name)}
    found.pop("", None)
    return {name: imported - {""} for name, imported in found.items()}


@pytest.mark.parametrize("part", CHAIN_MAX)
def test_modules_do_not_import_each_other_in_circles(part: str) -> None:
    assert circles(graph_of(part)) == []


@pytest.mark.parametrize("part", CHAIN_MAX)
def test_folders_do_not_import_each_other_in_circles(part: str) -> None:
    assert circles(folders_of(graph_of(part))) == []


@pytest.mark.parametrize("part", CHAIN_MAX)
def test_a_chain_of_imports_is_short(part: str) -> None:
    chain = longest(graph_of(part))
    assert len(chain) <= CHAIN_MAX[part], "\n".join(chain)


def test_a_circle_and_a_chain_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}
    assert sorted(circles(graph)) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert longest({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ("a", "b", "c")
