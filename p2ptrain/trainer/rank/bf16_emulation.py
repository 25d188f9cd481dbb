"""Products of bf16 matrices on CPUs that do not have instructions for them.

On such a CPU, torch multiplies number by number, which takes 35 times as long as in fp32 (AVX2,
1024 × 128 × 400, one core). So this module multiplies in fp32 and rounds the result. The bf16
instructions of other CPUs also sum in fp32 and round once. Only the order of the sums differs, as
between any two CPUs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@cache
def multiplies_bf16(device: str) -> bool:
    """Return whether torch multiplies bf16 matrices natively on this type of device. On a CPU,
    oneDNN does so if the CPU has the instructions."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def to_multiply(matrix: Tensor) -> Tensor:
    """Return `matrix`, which is bf16, as fp32 if its device does not multiply bf16 natively."""
    return matrix if multiplies_bf16(matrix.device.type) else matrix.float()


def rounded(product: Tensor) -> Tensor:
    """Round the values of `product` to bf16 numbers, but keep its type."""
    return product.bfloat16().to(product.dtype)


class RoundedLinear(nn.Linear):
    """A linear map that multiplies bf16 numbers in fp32. Its gradients are rounded to bf16 at the
    same places as those of native bf16 products."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16:
            return super().forward(x)
        return F.linear(x.float(), self.weight.float()).bfloat16()


def round_products(model: nn.Module) -> None:
    """Turn all linear maps of the model into `RoundedLinear`. The model's linear maps have no
    bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = RoundedLinear
