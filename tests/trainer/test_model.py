"""The model's mathematics, checked by properties that do not repeat its code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.model import Block, Llama, RMSNorm, rotary_table, rotate, token_losses
from tests.rounding import MARGIN, UNIT, of_sum

SPEC = ModelSpec(vocab=301, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=16)


def started(spec: ModelSpec, noise: float = 0.3, document_token: int | None = None) -> Llama:
    """Return the model with the first weights of a run plus noise, so that no matrix is zero.

    It is in fp64, where rounding is 10^8 times smaller than what torch's assert_close allows.
    """
    model, theta = Llama(spec, document_token), torch.from_numpy(genesis(spec, seed=1))
    named = dict(model.named_parameters())
    torch.manual_seed(0)
    with torch.no_grad():
        for entry in layout_of(spec).entries:
            named[entry.name].copy_(theta[entry.offset : entry.end].view(entry.shape))
            named[entry.name].add_(noise * torch.randn(entry.shape) / math.sqrt(entry.shape[-1]))
    return model.double()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, SPEC.vocab, (3, SPEC.sequence), generator=torch.manual_seed(2))


@torch.no_grad()
def test_output_does_not_depend_on_later_positions(tokens: torch.Tensor) -> None:
    model, changed = started(SPEC), tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SPEC.vocab
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])


@torch.no_grad()
def test_shorter_text_gives_the_same_logits(tokens: torch.Tensor) -> None:
    model = started(SPEC)
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens)[:, :5])


@torch.no_grad()
def test_first_loss_is_that_of_a_uniform_guess(tokens: torch.Tensor) -> None:
    loss, _ = token_losses(started(SPEC, noise=0.0)(tokens[:, :-1]), tokens[:, 1:], 0.0)
    assert loss.item() / 45 == pytest.approx(math.log(SPEC.vocab), abs=0.05)


@torch.no_grad()
def test_grouped_heads_equal_full_heads_with_shared_keys(tokens: torch.Tensor) -> None:
    grouped, full = started(SPEC), Llama(replace(SPEC, kv_heads=SPEC.heads)).double()
    for name, parameter in full.named_parameters():
        source = grouped.get_parameter(name)
        if ".key." in name or ".value." in name:
            source = source.unflatten(0, (SPEC.kv_heads, -1)).repeat_interleave(3, 0).flatten(0, 1)
        parameter.copy_(source)
    torch.testing.assert_close(full(tokens), grouped(tokens))


def test_products_of_rotated_vectors_depend_only_on_distance() -> None:
    table = rotary_table(32, 8, 10_000.0, torch.device("cpu"))
    query, key = torch.randn(2, 8, generator=torch.manual_seed(3))
    # Positions are below 32 and frequencies at most 1. So rounding changes an angle by at most 32
    # units, and each product involves two angles.
    rounding = float(2 * 32 * UNIT * query.norm() * key.norm())
    turned_q = rotate(query.expand(1, 1, 32, 8), table)[0, 0]
    turned_k = rotate(key.expand(1, 1, 32, 8), table)[0, 0]
    products = turned_q @ turned_k.T
    for distance in range(4):
        diagonal = products.diagonal(-distance)
        assert (diagonal - diagonal[0]).abs().max() < rounding


def test_rms_norm_follows_its_formula() -> None:
    norm, x = RMSNorm(6), torch.randn(4, 6, generator=torch.manual_seed(4))
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1.0, 7.0))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * torch.arange(1.0, 7.0)
    torch.testing.assert_close(norm(x), expected, rtol=of_sum(6), atol=0)


def test_objective_and_its_gradient_follow_their_formula() -> None:
    """(1/N) Σ (log Z − logit of the target + z · log² Z), and its derivative."""
    logits = torch.randn(2, 5, 11, generator=torch.manual_seed(5), dtype=torch.float64)
    targets = torch.randint(0, 11, (2, 5), generator=torch.manual_seed(6))
    logits.requires_grad_()
    loss, objective = token_losses(logits, targets, z_loss=0.1)
    objective.backward()
    with torch.no_grad():
        log_z = logits.exp().sum(-1).log()
        cross_entropy = (log_z - logits.gather(-1, targets[..., None])[..., 0]).sum()
        hit = torch.zeros_like(logits).scatter(-1, targets[..., None], 1.0)
        gradient = logits.softmax(-1) * (1 + 0.2 * log_z[..., None]) - hit
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, cross_entropy)
    torch.testing.assert_close(objective, cross_entropy + 0.1 * log_z.square().sum())
    torch.testing.assert_close(logits.grad, gradient)


@torch.no_grad()
def test_length_of_queries_and_keys_has_no_effect_after_normalisation(tokens: torch.Tensor) -> None:
    """The model has a single block, so that differences cannot grow in later blocks. The scale
    still has a small effect, because the norm adds 1e-5 to mean squares near 0.1."""
    model = started(replace(SPEC, layers=1, qk_norm=True))
    before = model(tokens)
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention = block.attention
    for layer in (attention.query, attention.key):
        assert isinstance(layer, nn.Linear)
        layer.weight.mul_(50.0)
    torch.testing.assert_close(model(tokens), before, atol=1e-3, rtol=1e-3)
    assert isinstance(attention.query_norm, RMSNorm)
    attention.query_norm.weight.mul_(2.0)
    assert not torch.allclose(model(tokens), before, atol=1e-3)


@torch.no_grad()
def test_packed_document_has_the_same_logits_as_alone(tokens: torch.Tensor) -> None:
    model = started(SPEC, document_token=7)
    packed = tokens[:1].clone()
    packed[packed == 7] = 8
    packed[0, 5] = packed[0, 11] = 7
    together = model(packed)
    for start, end in ((0, 5), (5, 11), (11, 16)):
        alone = model(packed[:, start:end])
        # The table of angles is in fp32, and a document on its own begins at the first angle.
        off = MARGIN * SPEC.sequence * UNIT * alone.norm()
        assert (together[:, start:end] - alone).norm() < off
    assert not torch.allclose(started(SPEC)(packed)[:, 5:], together[:, 5:], atol=1e-3)
