"""A small model of bytes, trained by plain DiLoCo for some outer steps.

It reads the repository's own documents. Training takes a quarter of a minute of processor time, and
the weights before each outer step are kept in build/trust.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.model import Llama, token_losses
from tests.acceptance.measures.setting import ROOT

SPEC = ModelSpec(vocab=256, layers=4, width=128, heads=4, kv_heads=2, ffn=344, sequence=128)
OUTER_STEPS = 8
INNER_STEPS = 8
ROWS = 4
LR = 2e-3
OUTER_LR, MOMENTUM = 0.7, 0.9
HELD_OUT_BYTES = 60_000
CACHED = ROOT / "build" / "trust" / "weights-1.pt"

Weights = dict[str, Tensor]


@cache
def corpus() -> Tensor:
    """Return the bytes of all documents of the repository, in one row."""
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    return torch.frombuffer(bytearray(b"\n".join(map(Path.read_bytes, files))), dtype=torch.uint8)


def rows(count: int, length: int, seed: int) -> Tensor:
    """Return random pieces [count, length] of the corpus that the model was not trained on."""
    held, random = corpus()[-HELD_OUT_BYTES:], torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(held) - length, (count,), generator=random)
    return torch.stack([held[start : start + length] for start in starts]).long()


def model_with(weights: Weights, document_token: int | None = None) -> Llama:
    model = Llama(SPEC, document_token)
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)


@cache
def outer_steps() -> list[Weights]:
    """Return the weights before each outer step, and after the last one."""
    if CACHED.exists():
        loaded: list[Weights] = torch.load(CACHED, weights_only=True)
        return loaded
    trained = _trained()
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    torch.save(trained, CACHED)
    return trained


def _trained() -> list[Weights]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, theta = Llama(SPEC), _first_weights()
    momentum = {name: torch.zeros_like(each) for name, each in theta.items()}
    model.load_state_dict(theta)
    inner = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    steps = [theta]
    for _ in range(OUTER_STEPS):
        _inner_steps(model, inner)
        local = model.state_dict()
        ahead = {}
        for name, each in theta.items():
            gradient = each - local[name]
            momentum[name] = MOMENTUM * momentum[name] + gradient
            ahead[name] = each - OUTER_LR * (gradient + MOMENTUM * momentum[name])
        theta = ahead
        steps.append(theta)
        model.load_state_dict(theta)
    return steps


def _first_weights() -> Weights:
    flat = torch.from_numpy(genesis(SPEC, seed=1))
    found = {
        entry.name: flat[entry.offset : entry.end].view(entry.shape).clone()
        for entry in layout_of(SPEC).entries
    }
    if SPEC.tied:
        found["head.weight"] = found["embedding.weight"]
    return found


def _inner_steps(model: Llama, inner: torch.optim.Optimizer) -> None:
    seen = corpus()[:-HELD_OUT_BYTES]
    for _ in range(INNER_STEPS):
        starts = torch.randint(0, len(seen) - SPEC.sequence - 1, (ROWS,))
        batch = torch.stack([seen[start : start + SPEC.sequence + 1] for start in starts]).long()
        loss, _ = token_losses(model(batch[:, :-1]), batch[:, 1:], 0.0)
        inner.zero_grad()
        (loss / batch[:, 1:].numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()


def rounded(weights: Weights, bits: int, group: int | None = 128) -> Weights:
    """Return the weights with all matrices rounded to `bits` bits. Groups of numbers share a scale;
    if `group` is None, each matrix has one scale."""
    most = 2 ** (bits - 1) - 1
    found = dict(weights)
    for name, each in weights.items():
        if each.dim() == 2:
            parts = each.reshape(-1, each.numel() if group is None else group)
            scale = parts.abs().amax(1, keepdim=True).clamp_min(1e-12) / most
            found[name] = ((parts / scale).round() * scale).view_as(each)
    return found
