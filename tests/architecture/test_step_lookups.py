"""A reduce gets its terms once, as an `OuterStep`, and passes that on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import PACKAGE, Module, modules

REDUCE = PACKAGE / "node" / "reduce"

LOOKUPS_MAX = 4
"""Today there are three: the terms, the note in a residual that a reduce has begun, and the end of
an earlier outer step."""


def is_step(node: ast.expr) -> bool:
    """Return whether the expression is a step number by its name."""
    return getattr(node, "attr", getattr(node, "id", None)) == "step"


def lookups(module: Module) -> Iterator[str]:
    """Yield each call with a step number as an argument, except of classes, which only keep it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and any(map(is_step, node.args)):
            called = ast.unparse(node.func)
            if not called.rpartition(".")[2][0].isupper():
                yield f"{module.where}:{node.lineno} {called}"


def test_the_code_of_a_reduce_looks_little_up_by_step_number() -> None:
    rooms = [module for module in modules() if module.path.parent == REDUCE]
    found = [each for module in rooms for each in lookups(module)]
    assert len(found) <= LOOKUPS_MAX, found


def test_a_step_number_that_a_class_keeps_is_no_lookup() -> None:
    text = "Key(run, each.step)\nfragment(step)\nparts.leg(roster.step).manifest\nsay(step=step)\n"
    module = Module(PACKAGE / "any.py", "p2ptrain.any", text)
    assert [each.split()[-1] for each in lookups(module)] == ["fragment", "parts.leg"]
