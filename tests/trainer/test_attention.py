"""Attention has the gradients of plain softmax, with the kernel that torch uses on this device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.rank.model import Attention, bias_of, within_documents
from tests.rounding import assert_rounded_alike

if TYPE_CHECKING:
    from p2ptrain.trainer.rank.ranks import Ranks

SPEC = ModelSpec(vocab=9, layers=1, width=256, heads=4, kv_heads=4, ffn=8, sequence=512)
"""A model whose heads are as wide as those of real models, since the kernels differ by width."""


def plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> Tensor:
    """Return softmax attention over all visible positions, in at least fp32."""
    sharing = query.shape[1] // key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (each.to(wide) for each in (query, key, value))
    k, v = (each.repeat_interleave(sharing, dim=1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores += torch.full_like(scores, -torch.inf).triu(1)
    if attn_mask is not None:
        scores += attn_mask.to(wide)
    return (scores.softmax(-1) @ v).to(query.dtype)


def gradients(attention: Attention, x: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return the gradients of the inputs and of all weights."""
    turns_nothing = torch.stack((torch.ones(x.shape[1], 32), torch.zeros(x.shape[1], 32)))
    x = x.clone().requires_grad_()
    y = attention(x, turns_nothing.to(x.device), bias)
    weights = list(attention.parameters())
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    return list(torch.autograd.grad(y.square().sum(), [x, *weights]))


@pytest.mark.parametrize("positions", [192, 512])
@pytest.mark.parametrize("documents", [False, True], ids=["", "documents"])
@pytest.mark.parametrize("kv_heads", [4, 2], ids=["", "grouped"])
def test_gradients_are_right_even_if_all_scores_are_very_negative(
    positions: int, documents: bool, kv_heads: int, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For such scores one GPU kernel produced NaN at lengths of 64 plus a multiple of 128."""
    dtype = torch.bfloat16 if ranks.device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    attention = Attention(replace(SPEC, kv_heads=kv_heads))
    with torch.no_grad():
        attention.key.weight.copy_(-attention.query.weight[: attention.key.weight.shape[0]])
    attention.to(ranks.device, dtype)
    x = (8 + torch.randn(2, positions, SPEC.width)).to(ranks.device, dtype)
    bias = None
    if documents:
        tokens = torch.randint(0, 40, (2, positions), device=ranks.device)
        bias = bias_of(within_documents(tokens, 0), dtype)
    made = gradients(attention, x, bias)
    monkeypatch.setattr(F, "scaled_dot_product_attention", plain)
    rounded = gradients(attention, x, bias)
    bias = None if bias is None else bias.double()
    exact = gradients(attention.double(), x.double(), bias)
    for found, true, plainly in zip(made, exact, rounded, strict=True):
        assert found.isfinite().all()
        assert_rounded_alike(*(each.double().cpu() for each in (found, true, plainly)))
