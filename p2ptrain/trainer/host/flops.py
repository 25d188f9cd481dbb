"""How much arithmetic a token costs, and how much a device could do: what MFU is made of.

    FLOPs per token = 6 · N + 12 · L · W · T        MFU = tokens/s · FLOPs per token ÷ peak

N counts the parameters that multiply (embeddings that are only looked up do not; a tied one is the
head); L layers, W width, T sequence.  Six: two for the forward pass, four for the backward.  The
second term is attention's, not halved for the causal mask, as in PaLM (arXiv 2204.02311, appendix
B) and torchtitan, so that figures can be compared.  What `--recompute` does again is not counted.
"""

from __future__ import annotations

import math
import re

from p2ptrain.ipc.trainer_config import ModelSpec, TrainerConfig
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
"""bf16 without sparsity, fp32 accumulation, from the makers' data sheets; the first name counts of
which the device's own has all words."""

OTHERS = frozenset({"MIG", "Laptop", "D", "Ti"})
"""A slice of a GPU, a laptop's and a variant have its name, but not its peak."""


def flops_per_token(spec: ModelSpec) -> int:
    """Of training on one token: forward and backward."""
    looked_up = () if spec.tied else ("embedding.weight",)
    multiplied = sum(
        math.prod(each.shape) for each in parameters(spec) if each.name not in looked_up
    )
    return 6 * multiplied + 12 * spec.layers * spec.width * spec.sequence


def flops_per_step(config: TrainerConfig) -> int:
    """Of one inner step, on all ranks together."""
    tokens = config.inner.batch_sequences * config.model.sequence
    return tokens * flops_per_token(config.model)


def peak_flops_per_s(device_name: str) -> float | None:
    """None for CPUs, for slices of a GPU (MIG), and for devices that the table lacks."""
    words = set(re.findall(r"\w+", device_name))
    named = (peak for name, peak in PEAK_FLOPS_PER_S.items() if words.issuperset(name.split()))
    return None if words & OTHERS else next(named, None)


def mfu(spec: ModelSpec, device_name: str, devices: int, tokens_per_s: float) -> float | None:
    """Model FLOPs utilisation: the share of what all `devices` could do; None where unknown."""
    peak = peak_flops_per_s(device_name)
    return None if peak is None else tokens_per_s * flops_per_token(spec) / (peak * devices)
