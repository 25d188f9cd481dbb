"""Tell the ledger that this node does not train, while it is paused or after the run was ended.

A paused node remains a member. At each outer step it reports that it is ready with 0 tokens, as a
seed does, so the others neither wait for it nor average with it. It keeps the blocks of its lease,
and trains them after the pause.
"""

from __future__ import annotations

from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import ready_work
from p2ptrain.observe.states import Paused, Stopped


async def while_paused(context: Context) -> None:
    """Return when this node may train. Until then, offer the work that was finished before the
    pause, as long as it counts, and otherwise none."""
    told: tuple[int, bool] | None = None
    while not context.may_train:
        pause, stopped = context.state.pause, context.state.stopped
        if stopped:
            context.state.set_state(Stopped(stopped))
        elif pause is not None:
            context.state.set_state(Paused(pause.reason))
        step, stands = context.ledger.snapshot.step, ready_work.stands(context) and not stopped
        if told != (step, stands):
            told = (step, stands)
            await _report(context, step, stands=stands)
        else:
            await context.changes.wait()


async def _report(context: Context, step: int, *, stands: bool) -> None:
    if stands:
        return await ready_work.offer_work_again(context)
    context.trainer.discard_work()
    await context.ledger.submit(Ready(context.me, step, 0, 0))
    context.own_heartbeat.send_now()
