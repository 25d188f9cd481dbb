"""The run's terms that a trainer needs for an outer step: how many blocks, and at which rates.

Call these functions only after `Context.until_known`.
"""

from __future__ import annotations

from p2ptrain.ipc import frames
from p2ptrain.node.state.context import Context
from p2ptrain.run import Leg
from p2ptrain.sync.trainer_orders import Pace


def pace_of(context: Context, step: int) -> Pace:
    manifest = context.leg(step).manifest
    return Pace(manifest.blocks_per_step, manifest.sync.overlap_steps)


def first_inner_step(context: Context, step: int) -> int:
    """Return how many inner steps a peer that took part from the start made before outer step
    `step`."""
    return context.leg(step).first_inner_step(step)


def rates_of(leg: Leg) -> frames.Rates:
    lr, now, then = leg.manifest.inner.lr, leg.manifest.blocks_per_step, leg.published_stride
    since, reached = leg.inner_step, leg.step * then
    if (since, now) == (reached, then):
        return frames.Rates(lr)
    return frames.Rates(lr, since, reached, now, then)


def seconds_of(progress: frames.Progress, block_tokens: int) -> float:
    """Return the duration of the inner step, of one block, by the trainer's clock, in seconds. The
    time between two reports may be longer: the trainer loads θ, saves its optimizer's state, or
    measures a loss.
    """
    return block_tokens / progress.tokens_per_s if progress.tokens_per_s > 0 else 0.0


def computed_s(progress: frames.Progress, block_tokens: int) -> float:
    """Return the part of that duration without the wait for the block, in seconds."""
    return max(0.0, seconds_of(progress, block_tokens) - progress.data_wait_s)
