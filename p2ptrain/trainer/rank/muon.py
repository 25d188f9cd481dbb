"""torch's Muon for sharded matrices: each matrix is gathered once per step.

Muon's step is an orthogonal matrix near the momentum, which can only be computed from the whole
matrix. torch.optim.Muon computes the same from shards, but multiplies sharded matrices, which takes
fifteen all-gathers per matrix instead of one. Here each rank computes the step of the whole matrix
and applies only its own rows. So the step does not depend on the number of ranks.

Therefore W ranks together do W times the arithmetic of one rank. Let n be a matrix's smaller side,
and T the tokens of an inner step. Then Muon on all W ranks takes at most 5 n W / T times the
arithmetic of the forward and backward passes. That is 4 % for n = 1,024, W = 4 and half a million
tokens. If each rank computed only some of the matrices, this cost would be divided by W. But then
each matrix would be sent twice, in an order on which all ranks agree. This is not worth it for the
few ranks of one peer.

The settings are those of torch. With one rank, the results are bit-identical to torch's on a
processor that multiplies in bf16. A test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from p2ptrain.trainer.rank.bf16_emulation import rounded, to_multiply


class ShardedMuon(torch.optim.Muon):
    """Muon for matrices that are sharded by rows; `adjust_lr_fn` is always "match_rms_adamw".

    With this setting, a step has about the same size as AdamW's: its root mean square is 0.2 times
    the learning rate, as the authors of this setting measured. So one learning rate suits both.
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
    """Approximate U Vᵀ of `matrix` = U S Vᵀ in bf16, with five Newton–Schulz steps as in torch.

    The coefficients are chosen so that small singular values grow fast. The iteration does not
    converge: singular values end anywhere from 0.5 to 1.5. Muon's authors found this harmless.
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
    """Shard `whole` like `parameter`. Nothing is sent, because all ranks have all of `whole`."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole.contiguous(), mesh, placements, src_data_rank=None)
