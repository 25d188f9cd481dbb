"""Training in fp64, and in fp32 or bf16 with the rows of each block in several orders. The second
kind shows how large rounding errors are.

Model and optimizer are the package's own, so only rounding and the order of sums differ.
(test_model, test_muon and tests/export check the formulas.) See tests/rounding.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from p2ptrain.data.blocks import Tokens, read_block
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.rank.optimizer import clip_gradients, make_optimizer
from tests.rounding import MARGIN, MARGIN_BF16, assert_rounded_alike, distance

ORDERS = 5
"""Number of row orders to train with. The error of a single order may be small by chance."""


@dataclass(frozen=True)
class Trained:
    """The loss (in nats) and the gradient's norm of each inner step, and the weights at the end."""

    losses: NDArray[np.float64]
    norms: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """The steps in fp64, and in the trainer's precision with several orders."""

    config: TrainerConfig
    tokens: int
    exact: Trained
    rounded: tuple[Trained, ...]

    def assert_alike(self, **found: ArrayLike) -> None:
        """Check that each of these fields of Trained is exact except for rounding."""
        for name, value in found.items():
            others = [getattr(each, name) for each in self.rounded]
            exact = getattr(self.exact, name)
            assert_rounded_alike(value, exact, *others, terms=self.terms[name], margin=self.margin)

    @property
    def moved(self) -> float:
        return distance(self.exact.weights, genesis(self.config.model, seed=0))

    @property
    def margin(self) -> float:
        return MARGIN_BF16 if self.config.precision == "bf16" else MARGIN

    @property
    def terms(self) -> dict[str, int]:
        """The number of terms in the sum behind each value: the tokens of a block for a loss, all
        weights for a norm. A weight is not a sum."""
        return {"losses": self.tokens, "norms": self.exact.weights.size, "weights": 1}


def read(paths: Sequence[str], config: TrainerConfig) -> list[Tokens]:
    spec = config.model
    return [read_block(Path(path), vocab=spec.vocab, sequence=spec.sequence) for path in paths]


def reference(config: TrainerConfig, blocks: Sequence[Tokens], rates: Sequence[float]) -> Reference:
    """Take one inner step for each block and rate, beginning with the first weights of a run."""
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    orders = [np.random.default_rng(seed) for seed in range(ORDERS)]
    shuffled = [[order.permutation(rows) for rows in blocks] for order in orders]
    return Reference(
        config,
        blocks[0][:, 1:].size,
        steps(config, blocks, rates, torch.float64),
        tuple(steps(config, rows, rates, dtype) for rows in shuffled),
    )


def model_at(weights: NDArray[np.floating], config: TrainerConfig, dtype: torch.dtype) -> Llama:
    """Return the model with these weights, computing in `dtype`."""
    model = Llama(config.model, config.document_token).to(dtype)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for entry in layout_of(config.model).entries:
            values = torch.tensor(weights[entry.offset : entry.end])
            named[entry.name].copy_(values.view(entry.shape))
    return model


def steps(
    config: TrainerConfig, blocks: Sequence[Tokens], rates: Sequence[float], dtype: torch.dtype
) -> Trained:
    """Take inner steps computed in `dtype`, with weights of at least fp32."""
    kept = torch.promote_types(dtype, torch.float32)
    model = model_at(genesis(config.model, seed=0), config, kept)
    optimizer = make_optimizer(model, config.inner)
    losses, norms = [], []
    for rows, rate in zip(blocks, rates, strict=True):
        weights = {name: each.to(dtype) for name, each in model.named_parameters()}
        batch = torch.from_numpy(rows)
        logits = torch.func.functional_call(model, weights, (batch[:, :-1],))
        loss, objective = token_losses(logits, batch[:, 1:], config.inner.z_loss)
        tokens = batch[:, 1:].numel()
        (objective / tokens).backward()
        norms.append(clip_gradients(model.parameters(), config.inner.clip))
        losses.append(float(loss.detach()) / tokens)
        optimizer.set_rate(rate)
        optimizer.step()
        optimizer.forget_gradients()
    return Trained(
        np.array(losses), np.array(norms), flat_of(dict(model.named_parameters()), config)
    )


def gradient(
    config: TrainerConfig, rows: Tokens, dtype: torch.dtype
) -> tuple[float, NDArray[np.float64]]:
    """Return the summed cross-entropy and the mean objective's gradient of one block at genesis."""
    model = model_at(genesis(config.model, seed=0), config, dtype)
    batch = torch.from_numpy(rows)
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    loss, objective = token_losses(logits, targets, config.inner.z_loss)
    (objective / targets.numel()).backward()
    return float(loss.detach()), flat_of(gradients_of(model), config)


def full(sharded: Tensor | None) -> Tensor:
    """Return the complete tensor of which the ranks hold shards."""
    assert isinstance(sharded, DTensor)
    whole = sharded.full_tensor()
    assert isinstance(whole, Tensor)
    return whole


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    named = {name: each.grad for name, each in model.named_parameters()}
    return {name: each for name, each in named.items() if each is not None}


def flat_of(named: Mapping[str, Tensor], config: TrainerConfig) -> NDArray[np.float64]:
    """Return the parameters in the canonical layout, with zeros as padding."""
    layout = layout_of(config.model)
    found = np.zeros(layout.numel)
    for entry in layout.entries:
        found[entry.offset : entry.end] = named[entry.name].detach().cpu().numpy().ravel()
    return found
