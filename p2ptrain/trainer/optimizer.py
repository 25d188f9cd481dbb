"""The inner optimizer: AdamW on sharded parameters, its rate set anew for every inner step.

Its state stays with this trainer over all outer steps and is never averaged: DiLoCo's finding.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from p2ptrain.ipc.trainer_config import InnerSpec


def make_optimizer(model: nn.Module, inner: InnerSpec) -> torch.optim.Optimizer:
    """AdamW; gains and other vectors do not decay, since small is no virtue in a gain."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": inner.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=inner.lr, betas=inner.betas, foreach=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], norm_max: float) -> float:
    """Scale all gradients together to a norm of at most `norm_max` (0: leave them), over all ranks.

    Returns the norm from before.
    """
    norm = nn.utils.clip_grad_norm_(parameters, norm_max if norm_max > 0 else float("inf"))
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
