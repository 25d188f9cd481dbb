"""Leave the run after this node's next contribution is committed, so that no work is lost."""

from __future__ import annotations

from collections.abc import Callable

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.control.leaving import leave
from p2ptrain.node.state.context import Context

FINISH = "finish"
"""The name of the command, in the journal."""


async def leave_when_finished(context: Context, print_line: Callable[[str], None]) -> None:
    """Wait until the owner has asked this node to finish and nothing would be lost. Then leave the
    run, and return."""
    while not (context.state.finishing is not None and is_done(context)):
        await context.changes.wait_calmly()
    context.journal.write(FINISH, contributed=context.has_finished)
    print_line(f"finished: {outcome(context)}")
    await leave(context)


def is_done(context: Context) -> bool:
    """Return whether a node that finishes has nothing more to contribute: it has contributed, or it
    has no work that could become a contribution."""
    state, own = context.ledger.snapshot, context.state
    idle = own.pause is not None and context.trainer.work is None
    over = state.phase is Phase.ENDED or bool(own.stopped)
    here = context.trains and state.is_member(context.me)
    return context.has_finished or over or idle or not here


def outcome(context: Context) -> str:
    """Say, in words, what the node has contributed."""
    if not context.has_finished:
        return "this node had no work to contribute"
    own = context.ledger.snapshot.tokens_by_peer.get(context.me, 0)
    return f"your last contribution is committed; {own:,} tokens of the run are yours"
