"""Notice that the organiser has ended the run, by an amendment that the members have agreed on."""

from __future__ import annotations

from p2ptrain.node.state.context import Context
from p2ptrain.observe.states import Stopped


async def notice_stop(context: Context) -> None:
    """Set `state.stopped` once the run has reached the step at which it ends. Then return: an
    agreed amendment cannot be withdrawn."""
    while not (reason := context.about(context.ledger.snapshot.step).stop):
        await context.changes.wait()
    context.state.stopped = reason
    context.state.set_state(Stopped(reason))
    step, tokens = context.ledger.snapshot.step, context.ledger.snapshot.tokens
    context.journal.write("run-stopped", step=step, tokens=tokens, reason=reason)
    context.own_heartbeat.send_now()
    context.changes.notify_all()
