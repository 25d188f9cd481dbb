"""The inner optimizer: AdamW, or Muon for the matrices inside blocks and AdamW for all else. The
learning rate is set for every inner step.

The optimizer's state is not averaged in outer steps. The authors of DiLoCo found that averaging it
does not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.muon import ShardedMuon


class InnerOptimizer:
    """Several of torch's optimizers that step together at one learning rate."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def groups(self) -> Iterator[dict[str, Any]]:
        return (group for part in self.parts for group in part.param_groups)

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """Return the optimizer's mutable state of `parameter`; empty before the first step."""
        return self._part_of(parameter).state[parameter]

    def has_muon(self, parameter: Tensor) -> bool:
        """Return whether Muon trains this parameter."""
        return isinstance(self._part_of(parameter), ShardedMuon)

    def _part_of(self, parameter: Tensor) -> torch.optim.Optimizer:
        for part in self.parts:
            if any(parameter is each for group in part.param_groups for each in group["params"]):
                return part
        raise AssertionError("none of the optimizers has this parameter")

    def set_rate(self, rate: float) -> None:
        for group in self.groups:
            group["lr"] = rate

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def forget_gradients(self) -> None:
        for part in self.parts:
            part.zero_grad()


def make_optimizer(model: Llama, inner: InnerSpec) -> InnerOptimizer:
    """Return the inner optimizer of the model.

    Weight decay is not applied to gains and other vectors, because small gains have no benefit.
    With "muon", Muon trains the matrices inside the blocks. AdamW trains the vectors, and also the
    embedding and the head, because these matrices are tables with a row for each token.
    """
    inside = [p for p in model.blocks.parameters() if p.ndim == 2] if inner.is_muon else []
    taken = set(map(id, inside))
    adamw = make_adamw((p for p in model.parameters() if id(p) not in taken), inner)
    if not inside:
        return InnerOptimizer(adamw)
    decay = inner.weight_decay
    muon = ShardedMuon(inside, lr=inner.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return InnerOptimizer(adamw, muon)


def make_adamw(parameters: Iterable[Tensor], inner: InnerSpec) -> torch.optim.AdamW:
    """Return AdamW for `parameters`, without weight decay for vectors."""
    matrices, vectors = list[Tensor](), list[Tensor]()
    for each in parameters:
        (matrices if each.ndim >= 2 else vectors).append(each)
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": inner.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=inner.lr, betas=inner.betas, fused=True)


def clip_gradients(parameters: Iterable[nn.Parameter], norm_max: float) -> float:
    """Scale the gradients of all parameters on all ranks so that their common norm is at most
    `norm_max`; 0 means no limit. Return the norm before scaling."""
    norm = nn.utils.clip_grad_norm_(parameters, norm_max if norm_max > 0 else float("inf"))
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
