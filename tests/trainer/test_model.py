"""The model's mathematics, against properties that do not repeat its code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.genesis import genesis
from p2ptrain.trainer.model import Llama, RMSNorm, rotary_table, rotate, token_losses
from p2ptrain.trainer.shapes import layout_of

SPEC = ModelSpec(vocab=301, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=16)


def started(spec: ModelSpec, noise: float = 0.3) -> Llama:
    """The model at genesis, with noise so that the zero-started matrices take part."""
    model, theta = Llama(spec), torch.from_numpy(genesis(spec, seed=1))
    named = dict(model.named_parameters())
    torch.manual_seed(0)
    with torch.no_grad():
        for entry in layout_of(spec).entries:
            named[entry.name].copy_(theta[entry.offset : entry.end].view(entry.shape))
            named[entry.name].add_(noise * torch.randn(entry.shape) / math.sqrt(entry.shape[-1]))
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, SPEC.vocab, (3, SPEC.sequence), generator=torch.manual_seed(2))


@torch.no_grad()
def test_no_position_sees_a_later_one(tokens: torch.Tensor) -> None:
    model, changed = started(SPEC), tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SPEC.vocab
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])


@torch.no_grad()
def test_a_shorter_text_gives_the_same_logits(tokens: torch.Tensor) -> None:
    model = started(SPEC)
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens)[:, :5])


@torch.no_grad()
def test_the_first_loss_is_that_of_a_uniform_guess(tokens: torch.Tensor) -> None:
    loss, _ = token_losses(started(SPEC, noise=0.0)(tokens[:, :-1]), tokens[:, 1:], 0.0)
    assert loss.item() / 45 == pytest.approx(math.log(SPEC.vocab), abs=0.05)


@torch.no_grad()
def test_grouped_heads_are_full_heads_that_share_keys_and_values(tokens: torch.Tensor) -> None:
    grouped, full = started(SPEC), Llama(replace(SPEC, kv_heads=SPEC.heads))
    for name, parameter in full.named_parameters():
        source = grouped.get_parameter(name)
        if ".key." in name or ".value." in name:
            source = source.unflatten(0, (SPEC.kv_heads, -1)).repeat_interleave(3, 0).flatten(0, 1)
        parameter.copy_(source)
    torch.testing.assert_close(full(tokens), grouped(tokens))


def test_rotated_products_depend_on_distance_alone() -> None:
    table = rotary_table(32, 8, 10_000.0, torch.device("cpu"))
    query, key = torch.randn(2, 8, generator=torch.manual_seed(3))
    turned_q = rotate(query.expand(1, 1, 32, 8), table)[0, 0]
    turned_k = rotate(key.expand(1, 1, 32, 8), table)[0, 0]
    products = turned_q @ turned_k.T
    for distance in range(4):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_rms_norm_follows_its_formula() -> None:
    norm, x = RMSNorm(6), torch.randn(4, 6, generator=torch.manual_seed(4))
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1.0, 7.0))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * torch.arange(1.0, 7.0)
    torch.testing.assert_close(norm(x), expected)


def test_z_loss_follows_its_formula_and_its_token_count() -> None:
    logits = torch.randn(2, 5, 11, generator=torch.manual_seed(5))
    targets = torch.randint(0, 11, (2, 5), generator=torch.manual_seed(6))
    loss, objective = token_losses(logits, targets, z_loss=0.1)
    log_z = logits.exp().sum(-1).log()
    expected = (log_z - logits.gather(-1, targets[..., None])[..., 0]).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(objective - loss, 0.1 * log_z.square().sum())
