"""The inner learning rate as a function of the run's inner step alone.

So a peer that joins, a restarted trainer and a peer that has trained from the start use the same
rate, and peers need not exchange a schedule's state.
"""

from __future__ import annotations

import math

from p2ptrain.ipc.trainer_config import InnerSpec

# With "wsd", the rate falls over the last fifth of the run, by 1 − √progress, as in INTELLECT-1.
DECAY_SHARE = 0.2
# "cosine" ends at a tenth of the peak: the usual floor, so that late steps still learn.
COSINE_FLOOR = 0.1


def learning_rate(inner: InnerSpec, inner_step: int) -> float:
    """Return the learning rate of `inner_step`; the first inner step of the run is 0."""
    if inner_step < inner.warmup_steps:
        return inner.lr * (inner_step + 1) / inner.warmup_steps
    span = max(1, inner.total_steps - inner.warmup_steps)
    progress = min(1.0, (inner_step - inner.warmup_steps) / span)
    return inner.lr * _shape(inner.schedule, progress)


def join_share(inner: InnerSpec, steps_since: int) -> float:
    """Return the share of the learning rate to use `steps_since` inner steps after a trainer began
    in the middle of a run. The warm-up is needed because AdamW's means over few gradients are
    mostly noise, and without it the steps would have full length."""
    return min(1.0, (steps_since + 1) / max(1, inner.join_warmup_steps))


def _shape(schedule: str, progress: float) -> float:
    match schedule:
        case "cosine":
            return COSINE_FLOOR + (1 - COSINE_FLOOR) * (1 + math.cos(math.pi * progress)) / 2
        case "wsd":
            falling = max(0.0, (progress - (1 - DECAY_SHARE)) / DECAY_SHARE)
            return 1 - math.sqrt(falling)
        case _:
            return 1.0
