"""A reduce looks up its terms once and passes them on as an `OuterStep`, instead of a step
number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import PACKAGE, Module, modules

REDUCE = PACKAGE / "node" / "reduce"

LOOKUPS_MAX = 4
"""Maximum number of lookups by step number. Today there are three lookups. They find the step's
terms, the record in the residual file which says that a reduce has begun, and the end of an earlier
outer step.
"""


def is_step(node: ast.expr) -> bool:
    """Return whether the expression's name says that it is a step number."""
    return getattr(node, "attr", getattr(node, "id", None)) == "step"


def lookups(module: Module) -> Iterator[str]:
    """Yield each call that takes a step number as an argument, except constructor calls, which only
    store it.
    """
    for node in module.nodes:
        if isinstance(node, ast.Call) and any(map(is_step, node.args)):
            called = ast.unparse(node.func)
            if not called.rpartition(".")[2][0].isupper():
                yield f"{module.where}:{node.lineno} {called}"


def test_reduce_code_does_few_lookups_by_step_number() -> None:
    rooms = [module for module in modules() if module.path.parent == REDUCE]
    found = [each for module in rooms for each in lookups(module)]
    assert len(found) <= LOOKUPS_MAX, found


def test_passing_a_step_number_to_a_constructor_is_not_a_lookup() -> None:
    text = "Key(run, each.step)\nfragment(step)\nparts.leg(roster.step).manifest\nsay(step=step)\n"
    module = Module(PACKAGE / "any.py", "p2ptrain.any", text)
    assert [each.split()[-1] for each in lookups(module)] == ["fragment", "parts.leg"]
