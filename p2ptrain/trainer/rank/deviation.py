"""The deviation of an eager trainer's weights from θ: its own newest work, before the average that
contains it has arrived.

`sync.eager` has the maths. This module keeps a rank's shares of three vectors, as large as its
parameters. A deviation is updated with each outer step. It is an estimate by this process alone:
peers do not contribute it, and a restarted trainer begins without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from p2ptrain.sync.eager import coasting


@dataclass(frozen=True, slots=True)
class Pull:
    """How strongly a peer applies its own work: its `share` of the coming average, and the
    learning rate and momentum of the outer optimizer.
    """

    share: float
    lr: float
    momentum: float


@dataclass(slots=True)
class Deviation:
    """`deviation` is added to θ. It is computed from `momentum` and from `added`, the newest work
    that it contains."""

    deviation: list[Tensor] = field(default_factory=list)
    momentum: list[Tensor] = field(default_factory=list)
    added: list[Tensor] = field(default_factory=list)
    _numbers: tuple[float, float] | None = None
    """Learning rate and momentum of the outer optimizer at the last step."""

    def follow(self, shard: Tensor) -> None:
        """Add a deviation for this parameter, zero at first."""
        for each in (self.deviation, self.momentum, self.added):
            each.append(torch.zeros_like(shard))

    @torch.no_grad()
    def forget(self) -> None:
        for each in (self.deviation, self.momentum, self.added):
            if each:
                torch._foreach_zero_(each)

    @torch.no_grad()
    def step(self, work: list[Tensor], pull: Pull, steps: int) -> None:
        """Update the deviation for the offered `work`, which is overwritten. `steps` is the number
        of outer steps since the last offer; 0 if `work` contains that same work.

        An amendment that changes the outer optimizer resets the deviation: a part that was added
        with the old numbers cannot be removed with the new ones, and would stay for ever.
        """
        if not work:
            return
        if self._numbers != (pull.lr, pull.momentum):
            self.forget()
            self._numbers = (pull.lr, pull.momentum)
        kept, coasted = coasting(pull.momentum, steps)
        torch._foreach_mul_(work, pull.share)
        fresh = torch._foreach_sub(work, self.added)
        torch._foreach_copy_(self.added, work)
        torch._foreach_add_(self.deviation, self.momentum, alpha=-pull.lr * coasted)
        torch._foreach_add_(self.deviation, fresh, alpha=-pull.lr * (1 + pull.momentum))
        torch._foreach_mul_(self.momentum, kept)
        torch._foreach_add_(self.momentum, fresh)
