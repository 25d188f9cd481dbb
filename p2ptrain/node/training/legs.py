"""What a trainer has to know of the run as it holds in an outer step: how much, and how fast.

The one place where `training` meets amendments. Ask after `Parts.until_known` only.
"""

from __future__ import annotations

from p2ptrain.ipc import frames
from p2ptrain.node.state.context import Parts
from p2ptrain.run import Leg
from p2ptrain.sync.trainer_orders import Pace


def pace_of(parts: Parts, step: int) -> Pace:
    manifest = parts.leg(step).manifest
    return Pace(manifest.blocks_per_step, manifest.sync.overlap_steps)


def first_inner_step(parts: Parts, step: int) -> int:
    """How many inner steps of a peer that was there all along come before outer step `step`."""
    return parts.leg(step).first_inner_step(step)


def rates_of(leg: Leg) -> frames.Rates:
    lr, now, then = leg.manifest.inner.lr, leg.manifest.blocks_per_step, leg.published_stride
    since, reached = leg.inner_step, leg.step * then
    if (since, now) == (reached, then):
        return frames.Rates(lr)
    return frames.Rates(lr, since, reached, now, then)


def seconds_of(progress: frames.Progress, block_tokens: int) -> float:
    """How long the inner step took, of one block, by the trainer's own clock. Between two answers
    of a trainer more may lie: it loads θ, keeps its optimizer's state, measures a loss.
    """
    return block_tokens / progress.tokens_per_s if progress.tokens_per_s > 0 else 0.0


def computed_s(progress: frames.Progress, block_tokens: int) -> float:
    """How much of that the trainer computed: all but its wait for the block."""
    return max(0.0, seconds_of(progress, block_tokens) - progress.data_wait_s)
