"""Offer a trainer's finished work for the next reduce, if other members would accept the work."""

from __future__ import annotations

import math

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.frames import FragmentReady
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.trainer import ClaimedWork
from p2ptrain.node.training import claiming
from p2ptrain.observe.states import FOR_OTHERS, StandingBy
from p2ptrain.ring import contribution_peak
from p2ptrain.sync.trainer_orders import Blocks, LocalWork, TrainerProgress


async def hold_to_the_bound(context: Context, outer_step: OuterStep) -> None:
    """Check that the other members would accept the trained weights. `theta_in_use` must be set
    during the check, so that nobody changes θ.
    Raises TrainerDiverged: a trained weight is not finite, or differs too much from θ."""
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


async def prepared(
    context: Context, progress: TrainerProgress, ready: FragmentReady, lease: Blocks
) -> ClaimedWork | None:
    """Check the finished work on `lease`. In a run with claims, quantise it and return our claim.
    `theta_in_use` must be set in the meantime. Raises TrainerDiverged: see `hold_to_the_bound`."""
    outer_step = context.outer_step(progress.step)
    await hold_to_the_bound(context, outer_step)
    if context.trainer.claims is None:
        return None
    work = LocalWork(ready.step, lease, ready.tokens)
    return await claiming.claim_work(context, outer_step, work, is_exact=progress.is_exact)


async def offer_work(
    context: Context, ready: FragmentReady, lease: Blocks, claimed: ClaimedWork | None = None
) -> None:
    """Offer the work on all blocks of `lease`, which the trainer has finished. From now on, a
    reduce may read this work from the arena, or its contribution from `claimed`."""
    context.trainer.work = LocalWork(ready.step, lease, ready.tokens)
    context.trainer.claimed = claimed
    context.journal.write(
        "ready",
        peer=context.me,
        step=ready.step,
        head=context.ledger.snapshot.head,
        tokens=ready.tokens,
        trained=lease,
        loss=ready.loss,
        **({} if claimed is None else {"claim": claimed.made.claim.digest}),
    )
    context.state.set_state(StandingBy(FOR_OTHERS))
    await _send_ready(context)


async def offer_work_again(context: Context) -> None:
    """Repeat the offer of finished work, if it still counts, when a new trainer starts.

    If the old trainer ended during `offer_work`, our ledger may not have received the offer. No
    trainer does this work again, so no later offer would follow. A needless repetition is harmless.
    """
    if stands(context):
        await _send_ready(context)


def stands(context: Context) -> bool:
    """Return whether the offered work covers all blocks that must be trained for the current outer
    step."""
    state, work = context.ledger.snapshot, context.trainer.work
    if work is None or (outer_step := context.known_outer_step(state.step)) is None:
        return False
    lease = state.leases.get(context.me, ())
    return work.stands_for(state.step, lease, outer_step.pace)


async def _send_ready(context: Context) -> None:
    """Report the offered work. If the ledger is on a new branch, first claim the work anew: a claim
    names its line, so the earlier claim does not count there."""
    await claiming.follow_line(context)
    if (ready := context.trainer.report_of(context.me)) is not None:
        await context.ledger.submit(ready)
        context.own_heartbeat.send_now()


async def follow_branches(context: Context) -> None:
    """Whenever the ledger has moved to a new branch, claim the offered work anew on it."""
    while True:
        seen, claimed = context.changes.count, context.trainer.claimed
        if claimed is not None and claimed.made.claim.line != context.ledger.snapshot.line:
            await offer_work_again(context)
        await context.changes.wait_calmly(since=seen)
