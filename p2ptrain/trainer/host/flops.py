"""Model FLOPs utilisation (MFU): the arithmetic per token, and the peak of a device.

    FLOPs per token = 6 · N + 12 · L · W · T        MFU = tokens/s · FLOPs per token ÷ peak

N is the number of parameters that take part in matrix products. An embedding does not count, since
its rows are only looked up, unless the head uses the same matrix (tied). L is the number of layers,
W the width, T the sequence length. For each parameter, the forward pass takes two operations and
the backward pass four. The second term is attention. As in PaLM (arXiv 2204.02311, appendix B) and
torchtitan, attention is not halved for the causal mask, so that figures can be compared. The
repeated arithmetic of `--recompute` is not counted.
"""

from __future__ import annotations

import math
import re

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.shapes import parameters

PEAK_FLOPS_PER_S = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A6000": 155e12,
    "RTX 5090": 209e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Peak in bf16 without sparsity, with fp32 accumulation, from data sheets. The first entry whose
words all occur in the device's name applies."""

OTHERS = frozenset({"MIG", "Laptop", "D", "Ti"})
"""Words in a device's name that mark a slice (MIG), a laptop version or another variant of a GPU.
Its peak differs from that of the GPU in the table."""


def flops_per_token(spec: ModelSpec) -> int:
    """Return the operations to train on one token, forward and backward."""
    looked_up = () if spec.tied else ("embedding.weight",)
    multiplied = sum(math.prod(p.shape) for p in parameters(spec) if p.name not in looked_up)
    return 6 * multiplied + 12 * spec.layers * spec.width * spec.sequence


def peak_flops_per_s(device_name: str) -> float | None:
    """Return the peak of a device; None for CPUs, slices of a GPU (MIG) and unknown devices."""
    words = set(re.findall(r"\w+", device_name))
    named = (peak for name, peak in PEAK_FLOPS_PER_S.items() if words.issuperset(name.split()))
    return None if words & OTHERS else next(named, None)


def mfu(spec: ModelSpec, device_name: str, devices: int, tokens_per_s: float) -> float | None:
    """Return the MFU of training at `tokens_per_s` on this number of `devices`; None if the peak is
    unknown."""
    peak = peak_flops_per_s(device_name)
    return None if peak is None else tokens_per_s * flops_per_token(spec) / (peak * devices)
