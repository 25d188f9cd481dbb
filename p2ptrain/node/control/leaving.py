"""Leave in an orderly way: say goodbye, wait until the other members have agreed to continue
without us, then exit.

If a voter vanishes, the other members need time to detect that. Until then the lost voter counts
when they compute how many voters are a quorum. A voter that says goodbye votes once more, for a
roster without itself. A second Ctrl-C ends the node immediately; the others must detect the loss.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import trio

from p2ptrain.errors import counted
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.peer_reports import Leaving
from p2ptrain.ledger.policy.membership import keeps_its_vote
from p2ptrain.node.state.context import Context
from p2ptrain.observe import states
from p2ptrain.suggested_command import to_paste

LEAVE_S = 20.0
GOODBYE_S = 0.3
"""Seconds for which the node waits after its last heartbeat, so that a neighbour receives it."""


class ExitSignals:
    """Handles SIGINT and SIGTERM. While `context` is None, the node can end without a goodbye."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self.context: Context | None = None

    async def obey_signals(self, node: trio.CancelScope) -> None:
        """Leave on the first signal, then cancel `node`. On the second signal, or if there is no
        context, cancel `node` immediately."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                async for _ in signals:
                    if self.context is None or self.context.state.leaving:
                        break
                    self._print_line(goodbye_text(self.context))
                    nursery.start_soon(self._leave, self.context, node)
                node.cancel()

    async def _leave(self, context: Context, node: trio.CancelScope) -> None:
        await leave(context)
        node.cancel()


async def leave(
    context: Context, *, limit_s: float = LEAVE_S, goodbye_s: float = GOODBYE_S
) -> None:
    """Say goodbye. Return when the other members no longer need this node's vote, or after
    `limit_s`."""
    context.state.leaving = True
    context.state.set_state(states.Leaving())
    await context.ledger.submit(Leaving(context.me))
    context.own_heartbeat.send_now()
    with trio.move_on_after(limit_s):
        while _is_needed(context):
            await context.changes.wait(at_most_s=1.0)
    context.own_heartbeat.send_now()
    await trio.sleep(goodbye_s)
    context.journal.write("left", member=context.ledger.snapshot.is_member(context.me))


def _is_needed(context: Context) -> bool:
    """Return whether the other members need our vote to agree on a roster without us.

    A learner has no vote. A founder of an open run keeps its vote as long as it is up, so the
    members cannot agree on a roster without it now. Both may leave immediately.
    """
    state, founders = context.ledger.snapshot, context.ledger.core.reports.founders
    if context.me not in state.voters or keeps_its_vote(founders, state, context.me):
        return False
    others = [
        voter for voter in state.voters if voter != context.me and not context.peers.is_down(voter)
    ]
    return bool(others) and state.phase is not Phase.ENDED


def goodbye_text(context: Context) -> str:
    """Return the text shown to a user who presses Ctrl-C."""
    trainer, state, lost, alone = context.trainer, context.ledger.snapshot, "", ""
    if trainer.work is None and trainer.inner_step:
        inner_steps = counted(trainer.inner_steps, "inner step")
        finish = to_paste(context.home.root, "finish")
        lost = f"; {trainer.inner_step} of {inner_steps} will be lost ({finish} keeps them)"
    if state.voters == (context.me,) and state.phase is not Phase.ENDED:
        alone = " This node is the run's only voter: nothing is committed until it is back."
    return f"Leaving within {LEAVE_S:.0f} s{lost}. Press Ctrl-C again to leave now.{alone}"
