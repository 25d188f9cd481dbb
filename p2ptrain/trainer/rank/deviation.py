"""Where an eager trainer's weights are beside θ: its own newest work, before its mean has come.

`sync.eager` has the maths. Here are a rank's shares of the three vectors, beside its parameters.
A deviation follows the outer steps that θ takes; it is this process's alone, and a guess: no peer
contributes any of it, and whoever starts anew begins without.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from p2ptrain.sync.eager import coasting


@dataclass(frozen=True, slots=True)
class Pull:
    """How far a peer goes on its own work alone: its `share` of the mean that will come, and the
    outer optimizer's numbers.
    """

    share: float
    lr: float
    momentum: float


@dataclass(slots=True)
class Deviation:
    """`deviation` is added to θ; `momentum` and `added` are what it is made with."""

    deviation: list[Tensor] = field(default_factory=list)
    momentum: list[Tensor] = field(default_factory=list)
    added: list[Tensor] = field(default_factory=list)
    _numbers: tuple[float, float] | None = None
    """The outer optimizer's, at the last step."""

    def follow(self, shard: Tensor) -> None:
        """Have a deviation of this parameter, too; none yet."""
        for each in (self.deviation, self.momentum, self.added):
            each.append(torch.zeros_like(shard))

    @torch.no_grad()
    def forget(self) -> None:
        for each in (self.deviation, self.momentum, self.added):
            if each:
                torch._foreach_zero_(each)

    @torch.no_grad()
    def step(self, work: list[Tensor], pull: Pull, steps: int) -> None:
        """`work` is offered, `steps` outer steps after what was offered last; 0 if it is that same
        work and more. It is overwritten.

        An amendment that changes the outer optimizer makes it begin anew: what was put in by the
        numbers of before cannot be taken out by others, and would stay for ever.
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
