"""Run one trainer after another, no matter what happens to their processes.

A trainer that dies is restarted with the same lease; the number of restarts is limited. The work
since the last commit is trained again, and the node remains a member. This module does not know the
trainer's orders, or which process starts its ranks.
"""

from __future__ import annotations

from functools import partial
from itertools import count

import trio

from p2ptrain.errors import TrainerError, TrainerUnfit
from p2ptrain.node.optimizer_sharing.recipient import take_inner_state
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training.trainer_link import RESTARTED, Conversation
from p2ptrain.node.training.trainer_processes import RunningTrainer, Trainers
from p2ptrain.observe.cautions import Caution

STOP_S = 5.0


async def train(parts: Parts, trainers: Trainers) -> None:
    """Run trainers one after another, until cancelled.

    Raises:
        TrainerError: there were too many restarts, or a restart would not help.
    """
    await take_inner_state(parts)
    last: TrainerError | None = None
    for restarts in count():
        running = await _start(trainers, last)
        if last is not None:
            told = f"{last.what}; the node has restarted it ({restarts})"
            parts.standing.warnings[RESTARTED] = Caution(last.code, told)
        parts.journal.write("trainer-started", pids=running.pids)
        again = False
        try:
            await Conversation(parts, running).hold()
        except TrainerError as exc:
            parts.journal.write(
                "trainer-ended", code=exc.code, reason=exc.what, evidence=exc.evidence
            )
            if isinstance(exc, TrainerUnfit):
                raise
            again, last = True, exc
        finally:
            _forget_trainer(parts)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(running.stop, STOP_S, again=again))


async def _start(trainers: Trainers, last: TrainerError | None) -> RunningTrainer:
    """Start the next trainer. If that fails, the error also says how the last trainer ended."""
    try:
        return await trio.to_thread.run_sync(trainers.start)
    except TrainerError as exc:
        if last is not None:
            exc.evidence = (*exc.evidence, last.what, *last.evidence)
            exc.likely, exc.do = last.likely or exc.likely, last.do or exc.do
        raise


def _forget_trainer(parts: Parts) -> None:
    """Reset the trainer's state. Work that it finished (`work`) is still in the arena and remains
    valid."""
    standing = parts.standing
    standing.trainer_up = False
    standing.theta_in_use = False
    standing.tokens_per_s = 0.0
    parts.changes.ring()
