"""The inner learning rate as a function of how many inner steps the run has behind it.

A pure function of the step: a joiner, a restarted trainer and a peer that trained all along use the
same rate, and no schedule state has to travel.
"""

from __future__ import annotations

import math

from p2ptrain.ipc.trainer_config import InnerSpec

# The last fifth of the run falls in "wsd", by 1 − √progress: INTELLECT-1's choice of decay.
DECAY_SHARE = 0.2
# "cosine" ends at a tenth of the peak: the usual floor, so that late steps still learn.
COSINE_FLOOR = 0.1


def learning_rate(inner: InnerSpec, inner_step: int) -> float:
    """The rate of inner step `inner_step`, the first of the run being 0."""
    if inner_step < inner.warmup_steps:
        return inner.lr * (inner_step + 1) / inner.warmup_steps
    span = max(1, inner.total_steps - inner.warmup_steps)
    progress = min(1.0, (inner_step - inner.warmup_steps) / span)
    return inner.lr * _shape(inner.schedule, progress)


def join_share(inner: InnerSpec, steps_since: int) -> float:
    """Of the learning rate, for the inner step that has `steps_since` before it since a trainer
    began in mid-run: AdamW's means over few gradients are noise, and its steps long all the same.
    """
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
