"""torch's Muon on sharded matrices: each is gathered once a step, and every rank keeps its rows.

Muon's step is that of an orthogonal matrix near the momentum, which only the whole matrix has.
Handed shards, torch.optim.Muon computes the same, but multiplies sharded matrices: fifteen
gatherings a matrix where one does.  Here each rank makes the whole step and takes its own part of
it, so the step does not depend on how many ranks there are.

So every rank computes the whole step of every matrix: W ranks do W times the arithmetic that one
does. Beside that of training it is at most 5 n W / T, where n is a matrix's smaller side and T the
tokens of an inner step: 4 % with n = 1,024, W = 4 and half a million tokens. To share the matrices
out would leave a W-th of it, for a second transfer of each; with the few ranks of one peer that is
not worth another order of sending that all of them must keep.

The settings are torch's, and so is every number that one rank computes, where the processor can
multiply in bf16; a test holds them together.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from p2ptrain.trainer.rank.bf16_emulation import rounded, to_multiply


class ShardedMuon(torch.optim.Muon):
    """For matrices that are sharded by rows; `adjust_lr_fn` is always "match_rms_adamw".

    With that, a step is as long as AdamW's usually is (0.2 rates in the mean square, measured by
    its authors), so one learning rate serves both.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"]
        mean.lerp_(gradient, 1 - momentum)
        direction = orthogonal(_whole(gradient.lerp(mean, momentum)), group)
        parameter.mul_(1 - rate * group["weight_decay"])
        length = 0.2 * math.sqrt(max(parameter.shape))
        parameter.add_(_like(parameter, direction), alpha=-rate * length)


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """About U Vᵀ of `matrix` = U S Vᵀ, in bf16: five steps of Newton and Schulz's, as torch does.

    Their coefficients are the steepest at zero, not convergent: singular values end anywhere from
    0.5 to 1.5, which Muon's authors found to do no harm.
    """
    a, b, c = group["ns_coefficients"]
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = to_multiply(x.div_(x.norm().clamp(min=group["eps"])))
    for _ in range(group["ns_steps"]):
        square = rounded(x @ x.T)
        powers = rounded(torch.addmm(square, square, square, beta=b, alpha=c))
        x = rounded(torch.addmm(x, powers, x, beta=a))
    x = x.bfloat16()
    return x.T if tall else x


def _whole(shard: Tensor) -> Tensor:
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def _like(parameter: Tensor, whole: Tensor) -> Tensor:
    """`whole`, which all ranks have, sharded as `parameter` is; nothing is sent."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole.contiguous(), mesh, placements, src_data_rank=None)
