"""Inside a package, there are no circular imports, and the longest chain of imports is short.

A chain is a sequence of modules. Each module imports the next. Its length is the number of
imports. A reader who wants to understand the first module may have to read all the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.sources import Module, imports, modules

LONGEST = {"ledger": 7, "node": 9}
"""Maximum length of an import chain inside each package that is measured."""

Graph = dict[str, frozenset[str]]


def graph(package: str, *, types: bool) -> Graph:
    """Return, for each module of the package, the modules of the package that it imports. With
    `types`, include imports under TYPE_CHECKING: they never run, but a reader has to follow them
    too.
    """
    inside = {module.name: module for module in modules() if module.part == package}
    return {
        name: frozenset(_inside(module, inside, types=types)) - {name}
        for name, module in inside.items()
    }


def _inside(module: Module, inside: dict[str, Module], *, types: bool) -> Iterator[str]:
    for name in _imports(module, types=types):
        found = name if name in inside else name.rpartition(".")[0]
        if found in inside:
            yield found


def _imports(module: Module, *, types: bool) -> Iterator[str]:
    if types:
        return imports(module)
    unparsed = ast.unparse(_WithoutTypes().visit(ast.parse(module.text)))
    return imports(Module(module.path, module.name, unparsed))


class _WithoutTypes(ast.NodeTransformer):
    """Empties every `if TYPE_CHECKING` block."""

    def visit_If(self, node: ast.If) -> ast.If:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
        self.generic_visit(node)
        return node


def circles(uses: Graph) -> list[str]:
    """Return the modules that import themselves indirectly."""

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        todo = list(uses[name])
        while todo:
            if (each := todo.pop()) not in found:
                found.add(each)
                todo += uses[each]
        return found

    return sorted(name for name in uses if name in reached(name))


def folders_of(uses: Graph) -> Graph:
    """Return, for each folder of a package, the folders that it imports. Ignore modules that are
    not in a folder.
    """

    def folder(name: str) -> str:
        return ".".join(name.split(".")[:3]) if name.count(".") > 2 else ""

    found: dict[str, set[str]] = {folder(name): set() for name in uses}
    for name, used in uses.items():
        found[folder(name)] |= {folder(each) for each in used} - {folder(name), ""}
    return {name: frozenset(used) for name, used in found.items() if name}


def longest_chain(uses: Graph) -> tuple[str, ...]:
    """Return the modules of the longest chain. The graph must not have cycles."""

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(each) for each in sorted(uses[name])), key=len, default=()))

    return max((chain(name) for name in sorted(uses)), key=len)


@pytest.mark.parametrize("package", LONGEST)
def test_package_has_no_circular_imports(package: str) -> None:
    assert circles(graph(package, types=True)) == []


@pytest.mark.parametrize("package", LONGEST)
def test_folders_of_a_package_have_no_circular_imports(package: str) -> None:
    assert circles(folders_of(graph(package, types=False))) == []


@pytest.mark.parametrize("package", LONGEST)
def test_longest_chain_of_imports_is_short(package: str) -> None:
    chain = longest_chain(graph(package, types=False))
    assert len(chain) - 1 <= LONGEST[package], " imports ".join(chain)


def test_planted_cycle_and_longest_chain_are_found() -> None:
    planted = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"d"}}
    uses = {name: frozenset(used) for name, used in planted.items()}
    assert circles(uses) == ["b", "c"]
    assert circles(
        folders_of(
            {
                "p.q.a.x": frozenset(["p.q.b.y"]),
                "p.q.b.y": frozenset(["p.q.a.z"]),
                "p.q.a.z": frozenset(),
            }
        )
    ) == ["p.q.a", "p.q.b"]
    assert longest_chain({**uses, "c": frozenset("d")}) == ("a", "b", "c", "d")


def test_type_checking_import_counts_for_cycles_but_not_for_chains() -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p2ptrain.ledger.core\n"
    module = Module(modules()[0].path, "p2ptrain.ledger.planted", text)
    assert "p2ptrain.ledger.core" in _imports(module, types=True)
    assert "p2ptrain.ledger.core" not in _imports(module, types=False)
