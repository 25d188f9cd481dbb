"""The inner optimizer: AdamW, or Muon for matrices. Its rate is set for every inner step.

Its state stays with this trainer over all outer steps. The authors of DiLoCo found that averaging
it does not help.
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
        for part in self.parts:
            if any(parameter is each for group in part.param_groups for each in group["params"]):
                return part.state[parameter]
        raise AssertionError("none of the optimizers has this parameter")

    def has_muon(self, parameter: Tensor) -> bool:
        return any(
            parameter is each
            for part in self.parts
            if isinstance(part, ShardedMuon)
            for group in part.param_groups
            for each in group["params"]
        )

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
    Muon trains the matrices inside the blocks. The embedding and the head are tables with a row per
    token rather than linear maps, so AdamW trains them and all vectors.
    """
    inside = [p for p in model.blocks.parameters() if p.ndim == 2] if inner.is_muon else []
    taken = set(map(id, inside))
    others = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": inner.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=inner.lr, betas=inner.betas, fused=True)
    if not inside:
        return InnerOptimizer(adamw)
    muon = ShardedMuon(
        inside, lr=inner.lr, weight_decay=inner.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return InnerOptimizer(adamw, muon)


def clip_gradients(parameters: Iterable[nn.Parameter], norm_max: float) -> float:
    """Scale all gradients, over all ranks, to a common norm of at most `norm_max`; 0: no limit.

    Return the norm before scaling.
    """
    norm = nn.utils.clip_grad_norm_(parameters, norm_max if norm_max > 0 else float("inf"))
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
