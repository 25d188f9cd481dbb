"""How far a trainer's weights differ from θ in a run with `sync.eager`, where a trainer applies its
own newest work before the average with that work arrives. (Mathematics: p2ptrain/sync/eager.py.)

This module keeps a rank's shares of three vectors, each as large as its parameters. The deviation
is updated in each outer step. It never leaves this process: it is not part of a peer's
contribution, and a restarted trainer begins without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from p2ptrain.sync.eager import coasting


@dataclass(frozen=True, slots=True)
class Pull:
    """How strongly a peer applies its own work: its `share` of the coming average, and the
    learning rate and momentum of the outer optimizer."""

    share: float
    lr: float
    momentum: float


@dataclass(slots=True)
class Deviation:
    """The deviation as tensors, one for each parameter. `momentum` and `added` are the outer
    momentum of this trainer's own work, and the newest work that `deviation` contains."""

    deviation: list[Tensor] = field(default_factory=list)
    momentum: list[Tensor] = field(default_factory=list)
    added: list[Tensor] = field(default_factory=list)
    _numbers: tuple[float, float] | None = None
    """Learning rate and momentum of the outer optimizer at the last step."""

    def follow(self, shard: Tensor) -> None:
        """Add a deviation for this parameter, zero at first."""
        for each in (self.deviation, self.momentum, self.added):
            each.append(torch.zeros_like(shard))

    def forget(self) -> None:
        """Set the deviation to zero."""
        for each in (self.deviation, self.momentum, self.added):
            if each:
                torch._foreach_zero_(each)

    def step(self, work: list[Tensor], pull: Pull, steps: int) -> None:
        """Update the deviation with the offered `work`; the tensors of `work` are overwritten.
        `steps` is the number of outer steps since the last offer. It is 0 if this offer contains
        the same work as the last one, and replaces it.

        An amendment that changes the outer optimizer resets the deviation. Otherwise, the part that
        was added with the old settings could not be removed with the new ones, and would remain.
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
