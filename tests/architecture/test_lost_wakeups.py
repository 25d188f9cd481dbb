"""A task that waits for changes misses none of them.

`Changes.wait` returns at the next notification. If a task checks the state, then awaits something
else, and then waits for changes, it misses what changed in between. Such a task has to pass
`since`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from tests.architecture.sources import PACKAGE, Module, modules

FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef
LEAVES = ast.Continue, ast.Break, ast.Return, ast.Raise
CHECKPOINTS = ast.Await, ast.AsyncWith, ast.AsyncFor


def awaits(node: ast.AST) -> bool:
    """Return whether running `node` may await something. Nested functions do not count."""
    if isinstance(node, CHECKPOINTS):
        return True
    below = (each for each in ast.iter_child_nodes(node) if not isinstance(each, FUNCTIONS))
    return any(map(awaits, below))


def leaves(block: Sequence[ast.stmt]) -> bool:
    """Return whether the statement after the block is never reached through it."""
    last = block[-1]
    if isinstance(last, ast.If) and last.orelse:
        return leaves(last.body) and leaves(last.orelse)
    return isinstance(last, LEAVES)


def awaits_before_next(statement: ast.stmt) -> bool:
    """Return whether the next statement may be reached after an await in this one."""
    if not isinstance(statement, ast.If):
        return awaits(statement)
    blocks = [block for block in (statement.body, statement.orelse) if block and not leaves(block)]
    return awaits(statement.test) or any(any(map(awaits_before_next, block)) for block in blocks)


def is_bare_wait(statement: ast.stmt) -> bool:
    """Return whether the statement waits for changes without `since` and without a time limit."""
    match statement:
        case ast.Expr(ast.Await(ast.Call(ast.Attribute(changes, "wait" | "wait_calmly"), [], []))):
            return ast.unparse(changes).endswith("changes")
    return False


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def late_waits(block: Sequence[ast.stmt], *, awaited: bool = False) -> Iterator[int]:
    """Yield the lines of the bare waits that an earlier await of the same iteration precedes."""
    for statement in block:
        if is_bare_wait(statement):
            if awaited:
                yield statement.lineno
            awaited = False
            continue
        begins = isinstance(statement, FUNCTIONS)
        loops = isinstance(statement, ast.While)
        before = awaits(statement.test) if isinstance(statement, ast.While) else awaited
        for each in blocks_of(statement):
            yield from late_waits(each, awaited=before and not begins)
        if not begins and (awaits(statement) if loops else awaits_before_next(statement)):
            awaited = True


def found_in(module: Module) -> list[str]:
    return [f"{module.where}:{line}" for line in late_waits(module.tree.body)]


def test_no_task_awaits_anything_between_its_check_and_its_wait() -> None:
    assert [each for module in modules() for each in found_in(module)] == []


EXAMPLES = """
async def loses_a_change(context):
    while True:
        if decide(context):
            await apply(context)
        await context.changes.wait()  # line 6

async def checks_again_after_it_applied(context):
    while True:
        if decide(context):
            await apply(context)
            continue
        await context.changes.wait()

async def passes_the_count(context):
    while True:
        seen = context.changes.count
        if decide(context):
            await apply(context)
        await context.changes.wait(since=seen)

async def applies_in_a_loop_of_its_own(context):
    while not decide(context):
        await context.changes.wait()
    await apply(context)
"""


def test_late_wait_is_found_and_careful_loops_are_allowed() -> None:
    assert found_in(Module(PACKAGE / "any.py", "p2ptrain.any", EXAMPLES)) == ["p2ptrain/any.py:6"]
