"""Run one trainer after another, no matter what happens to their processes.

After a trainer has died, a new one repeats the work that this node has not reported to its ledger
as ready, and the node remains a member of the run. The number of restarts is limited. While the
node is paused, no trainer runs: only the end of its process gives back all memory of a device.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.errors import TrainerError, TrainerUnfit
from p2ptrain.node.optimizer_sharing.recipient import take_inner_state
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import paused, ready_work
from p2ptrain.node.training.trainer_link import RESTARTED, TrainerSession
from p2ptrain.node.training.trainer_processes import RunningTrainer, Trainers
from p2ptrain.observe.cautions import Caution

STOP_S = 5.0


async def train(context: Context, trainers: Trainers, *, stop_s: float = STOP_S) -> None:
    """Run trainers one after another, until cancelled.
    Raises TrainerError: there were too many restarts, or a restart would not help."""
    await ready_work.offer_work_again(context)  # If a restarted node has kept its claim.
    await paused.while_paused(context)
    await take_inner_state(context)
    last: TrainerError | None = None
    restarts = 0
    while True:
        await paused.while_paused(context)
        limits = context.state.wishes.limits
        trainers.use_limits(limits.threads or context.config.threads, limits.gpu_bytes or 0)
        running = await _start(trainers, last)
        if last is not None:
            told = f"{last.what}; the node has started a new trainer (restart {restarts})"
            context.alerts.show(RESTARTED, Caution(last.code, told))
        context.journal.write("trainer-started", pids=running.pids)
        again = False
        try:
            session = TrainerSession(context, running)
            await context.changes.run_while(lambda: context.may_train, session.serve)
            last = None
        except TrainerError as exc:
            context.journal.write(
                "trainer-ended", code=exc.code, reason=exc.what, evidence=exc.evidence
            )
            if isinstance(exc, TrainerUnfit):
                raise
            again, last, restarts = True, exc, restarts + 1
        finally:
            context.trainer.note_end()
            context.changes.notify_all()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(running.stop, stop_s, again=again))
        if last is None:
            context.journal.write("trainer-paused", pids=running.pids)


async def _start(trainers: Trainers, last: TrainerError | None) -> RunningTrainer:
    """Start the next trainer. If that fails, raise an error that also says how the `last` trainer
    ended."""
    try:
        return await trio.to_thread.run_sync(trainers.start)
    except TrainerError as exc:
        if last is not None:
            exc.evidence = (*exc.evidence, last.what, *last.evidence)
            exc.likely, exc.do = last.likely or exc.likely, last.do or exc.do
        raise
