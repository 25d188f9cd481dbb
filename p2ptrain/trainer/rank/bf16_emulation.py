"""Products of bf16 matrices on CPUs that have no instructions for them.

There torch multiplies number by number: 35 times as slowly as in fp32 (AVX2, 1024 × 128 × 400, one
core).  So multiply in fp32 and round the result, which is what such instructions do: they sum in
fp32 and round once.  Only the order of the sums differs, as it does between any two CPUs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@cache
def multiplies_bf16(device: str) -> bool:
    """Whether a `device` of this type does. On a CPU oneDNN multiplies for torch, where it can."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def to_multiply(matrix: Tensor) -> Tensor:
    """A matrix of bf16 numbers, in the type to multiply it in."""
    return matrix if multiplies_bf16(matrix.device.type) else matrix.float()


def rounded(product: Tensor) -> Tensor:
    """To the numbers that bf16 has, in the type that it was computed in."""
    return product.bfloat16().to(product.dtype)


class RoundedLinear(nn.Linear):
    """Of bf16 numbers, in fp32. Its gradients are rounded to bf16 where bf16 products' would be."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        return F.linear(x.float(), self.weight.float()).bfloat16()


def round_products(model: nn.Module) -> None:
    """Have all of the model's linear maps multiply like that. None has a bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = RoundedLinear
