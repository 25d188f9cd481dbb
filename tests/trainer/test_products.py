"""Emulated bf16 products (computed in fp32, then rounded) give the same model and gradients as
bf16."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank import bf16_emulation
from p2ptrain.trainer.rank.bf16_emulation import RoundedLinear, round_products, rounded, to_multiply
from p2ptrain.trainer.rank.model import Block, Llama, token_losses
from p2ptrain.trainer.rank.muon import ShardedMuon, orthogonal
from tests.rounding import MARGIN, UNIT_BF16, distance
from tests.trainer.reference import gradients_of


def differently_rounded(one: Tensor, other: Tensor) -> float:
    """Return the share of numbers that differ, and check that no two differ by more than one
    rounding step."""
    torch.testing.assert_close(one, other, rtol=2.01 * UNIT_BF16, atol=1e-30)
    return float((one != other).float().mean())


def test_rounded_product_equals_bf16_except_for_the_order_of_sums() -> None:
    random = torch.manual_seed(3)
    a, b = (torch.randn(shape, generator=random).bfloat16() for shape in ((37, 300), (300, 53)))
    ours = rounded(a.float() @ b.float())
    assert ours.dtype == torch.float32
    assert torch.equal(ours, ours.bfloat16().float())
    # Two fp32 sums of 300 products differ by less than 2 · of_sum(300) times the norm of their
    # terms. That is a 300th of a bf16 step. A sum is rarely less than a tenth of that norm, so the
    # two sums differ by at most a 30th of a bf16 step. They round differently only if the middle
    # between two bf16 numbers lies between them: for fewer than one sum in 30.
    assert differently_rounded(ours, (a @ b).float()) < 1 / 30


def test_cpu_without_bf16_multiplies_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = torch.ones(2, 3, dtype=torch.bfloat16)
    for able, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(bf16_emulation, "multiplies_bf16", lambda device, able=able: able)
        assert to_multiply(matrix).dtype == dtype
        assert rounded(to_multiply(matrix)).dtype == dtype


def test_direction_of_muon_is_the_same_with_and_without_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = ShardedMuon([torch.nn.Parameter(torch.zeros(20, 50))]).param_groups[0]
    matrix = torch.randn(20, 50, generator=torch.manual_seed(2))
    found = []
    for able in (False, True):
        monkeypatch.setattr(bf16_emulation, "multiplies_bf16", lambda device, able=able: able)
        found.append(orthogonal(matrix, group))
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    one, other = (each.float() for each in found)
    assert distance(one, other) < MARGIN * UNIT_BF16 * one.norm()


def made(config: TrainerConfig) -> Llama:
    model = Llama(config.model)
    random = torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=random)
    return model


TOKENS = torch.arange(64).reshape(4, 16) * 7 % 300


def test_rounded_products_give_the_losses_and_gradients_of_bf16(
    config: TrainerConfig,
) -> None:
    gradients, losses = [], []
    for rounds in (False, True):
        model = made(config).bfloat16()
        if rounds:
            round_products(model)
            block = model.blocks[0]
            assert isinstance(block, Block)
            assert isinstance(block.attention.query, RoundedLinear)
        loss = token_losses(model(TOKENS), TOKENS.roll(-1, 1), 1e-3)[1]
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(
            torch.cat([each.float().flatten() for each in gradients_of(model).values()])
        )
    # The loss of each of the 64 tokens can round to an adjacent bf16 number, up or down.
    assert losses[1] == pytest.approx(losses[0], rel=6 * 2 * UNIT_BF16 / math.sqrt(64))
    assert distance(*gradients) < MARGIN * UNIT_BF16 * gradients[0].norm()


@torch.no_grad()
def test_rounded_products_leave_fp32_parts_in_fp32(
    config: TrainerConfig,
) -> None:
    model = made(config)
    before = model(TOKENS)
    round_products(model)
    assert torch.equal(model(TOKENS), before)
