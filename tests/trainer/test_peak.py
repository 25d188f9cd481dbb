"""Model FLOPs utilisation (MFU) follows its formula."""

from __future__ import annotations

import pytest

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.host.flops import flops_per_token, mfu, peak_flops_per_s

LLAMA_8B = ModelSpec(128_256, 32, 4096, 32, 8, 14_336, 8192, tied=False)


def test_flops_per_token_of_llama_8b_match_torchtitan() -> None:
    parameters = 8_030_261_248
    expected = 6 * (parameters - 128_256 * 4096) + 12 * 32 * 4096 * 8192
    assert flops_per_token(LLAMA_8B) == expected


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA RTX A6000", 155e12),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA RTX A1000 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GB200", None),
        ("cpu", None),
        ("A device of next year", None),
    ],
)
def test_peak_is_known_only_for_listed_devices(device: str, peak: float | None) -> None:
    assert peak_flops_per_s(device) == peak


def test_utilisation_is_relative_to_all_devices_together() -> None:
    tokens_per_s = 2 * 989e12 / flops_per_token(LLAMA_8B)
    assert mfu(LLAMA_8B, "NVIDIA H100 80GB HBM3", 2, tokens_per_s) == pytest.approx(1.0)
    assert mfu(LLAMA_8B, "cpu", 2, tokens_per_s) is None
