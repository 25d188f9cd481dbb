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
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.states import StandingBy
from p2ptrain.ring import contribution_peak
from p2ptrain.sync.trainer_orders import Blocks, Work


async def hold_to_the_bound(parts: Parts, outer_step: OuterStep) -> None:
    """Refuse to offer work that other members would refuse. The trainer must keep `theta_in_use`
    set during the check.

    Raises:
        TrainerDiverged: the weights trained here are too far from θ.
    """
    arena, most = parts.arena, outer_step.influence_max
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


async def offer(parts: Parts, ready: FragmentReady, lease: Blocks) -> None:
    """Offer the work for all of `lease`, which the trainer has finished. From now on, it may be
    averaged."""
    work = Work(ready.step, lease, ready.tokens)
    parts.standing.work = work
    parts.journal.write(
        "ready",
        peer=parts.me,
        step=ready.step,
        head=parts.ledger.state.head,
        tokens=ready.tokens,
        trained=lease,
        loss=ready.loss,
    )
    parts.enter(StandingBy("for the others to finish their inner steps"))
    await _tell(parts, work)


async def offer_again(parts: Parts) -> None:
    """When a new trainer starts, repeat the offer of work that is still valid. The task of the old
    trainer may have ended in `offer`, before our ledger received the event. No trainer does the
    work again, so there would not be another offer. A repeated offer has no effect.
    """
    work = parts.standing.work
    if work is not None and stands(parts):
        await _tell(parts, work)


def stands(parts: Parts) -> bool:
    """Return whether the last offered work is all that our lease currently asks for."""
    state, work = parts.ledger.state, parts.standing.work
    if work is None or (outer_step := parts.known_outer_step(state.step)) is None:
        return False
    lease = state.leases.get(parts.me, ())
    return work.stands_for(state.step, lease, outer_step.pace)


async def _tell(parts: Parts, work: Work) -> None:
    await parts.tell(Ready(parts.me, work.step, work.tokens, len(work.blocks)))
    parts.speak_now()
