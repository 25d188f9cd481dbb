"""Offer work that a trainer has finished, if other members would accept it. Repeat the offer until
our own ledger has received it, even if the trainer ends.
"""

from __future__ import annotations

import math

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.frames import FragmentReady
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.state.context import Context
from p2ptrain.observe.states import StandingBy
from p2ptrain.ring import contribution_peak
from p2ptrain.sync.trainer_orders import Blocks, LocalWork


async def hold_to_the_bound(context: Context, outer_step: OuterStep) -> None:
    """Refuse to offer work that other members would refuse. The trainer must keep `theta_in_use`
    set during the check.

    Raises:
        TrainerDiverged: the weights trained here are too far from θ.
    """
    arena, most = context.trainer.arena, outer_step.influence_max
    assert arena is not None
    pieces = [slice(*each) for each in outer_step.fragment.ranges]
    peaks = await trio.to_thread.run_sync(
        lambda: [contribution_peak(arena.theta[each], arena.local[each]) for each in pieces]
    )
    if not all(map(math.isfinite, peaks)):
        raise TrainerDiverged("a trained weight is not a finite number")
    if (peak := max(peaks)) > most:
        raise TrainerDiverged(
            f"a trained weight differs from the shared one by {peak:.3g}; this run allows at "
            f"most {most:.3g}",
            code="DIVERGED",
        )


async def offer_work(context: Context, ready: FragmentReady, lease: Blocks) -> None:
    """Offer the work for all of `lease`, which the trainer has finished. From now on, it may be
    averaged."""
    work = LocalWork(ready.step, lease, ready.tokens)
    context.trainer.work = work
    context.journal.write(
        "ready",
        peer=context.me,
        step=ready.step,
        head=context.ledger.snapshot.head,
        tokens=ready.tokens,
        trained=lease,
        loss=ready.loss,
    )
    context.state.set_state(StandingBy("for the others to finish their inner steps"))
    await _send_ready(context, work)


async def offer_work_again(context: Context) -> None:
    """Offer finished work that still counts again when a new trainer starts. The task of the old
    trainer may have ended in `offer_work`, before our ledger received the event. No trainer does
    the work again, so no other offer would follow. A repeated offer changes nothing.
    """
    work = context.trainer.work
    if work is not None and stands(context):
        await _send_ready(context, work)


def stands(context: Context) -> bool:
    """Return whether the last offered work is all that our lease currently asks for."""
    state, work = context.ledger.snapshot, context.trainer.work
    if work is None or (outer_step := context.known_outer_step(state.step)) is None:
        return False
    lease = state.leases.get(context.me, ())
    return work.stands_for(state.step, lease, outer_step.pace)


async def _send_ready(context: Context, work: LocalWork) -> None:
    await context.ledger.submit(Ready(context.me, work.step, work.tokens, len(work.blocks)))
    context.own_heartbeat.send_now()
