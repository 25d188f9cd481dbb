"""One inner step on one block of data, and the loss of one block, for any number of ranks.

The gradient is that of the mean loss over all tokens of the block. Each rank computes its share of
the block's rows and divides by the number of tokens in the whole block. So the result is the same
up to rounding for one rank, two ranks, or five ranks with unequal shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from p2ptrain.data.blocks import Tokens
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.rank.optimizer import InnerOptimizer, clip_gradients
from p2ptrain.trainer.rank.parallelize import forget_gathered
from p2ptrain.trainer.rank.ranks import Ranks


@dataclass(frozen=True, slots=True)
class InnerStep:
    """The result of an inner step: the block's mean cross-entropy in nats before the step, and the
    norm of the whole gradient before clipping."""

    loss: float
    gradient_norm: float


def predicted_tokens(rows: Tokens) -> int:
    """Return the number of predicted tokens: every token of a row except the first."""
    return rows.shape[0] * (rows.shape[1] - 1)


def own_pieces(rows: Tokens, ranks: Ranks, micro_batch: int) -> list[Tensor]:
    """Return this rank's rows in pieces of at most `micro_batch` rows; 0 means one piece.

    All ranks get the same number of pieces, because the forward pass of each piece gathers
    parameters from all ranks. A rank with fewer rows gets smaller pieces, at worst an empty one.
    """
    assert len(rows) >= ranks.count, f"{len(rows)} sequences for {ranks.count} ranks"
    share = math.ceil(len(rows) / ranks.count)
    count = math.ceil(share / (micro_batch or share))
    own = np.array_split(rows, ranks.count)[ranks.rank]
    return [torch.from_numpy(piece).to(ranks.device) for piece in np.array_split(own, count)]


def train_on(
    rows: Tokens, model: Llama, optimizer: InnerOptimizer, ranks: Ranks, config: TrainerConfig
) -> InnerStep:
    """Do one inner step.

    Raises TrainerDiverged: loss or gradient is not finite. Weights and optimizer have not changed.
    """
    summed = accumulate(rows, model, ranks, config)
    norm = clip_gradients(model.parameters(), config.inner.clip)
    mean = float(ranks.sum(summed)) / predicted_tokens(rows)
    if not math.isfinite(mean) or not math.isfinite(norm):
        optimizer.forget_gradients()
        raise TrainerDiverged(f"the loss is {mean} and the gradient's norm {norm}")
    optimizer.step()
    optimizer.forget_gradients()
    return InnerStep(mean, norm)


def accumulate(rows: Tokens, model: Llama, ranks: Ranks, config: TrainerConfig) -> Tensor:
    """Add the gradient of the block's mean objective to the parameters' gradients. Return the
    summed cross-entropy of this rank's rows in nats, which a GPU may still be computing.

    Several ranks reduce-scatter the gradient after each piece, as in torchtitan. Doing this only
    after the last piece would save traffic, but until then each rank would hold the gradient of the
    whole model in fp32. Then a smaller `micro_batch` would need more memory, not less.
    """
    tokens = predicted_tokens(rows)
    loss_sum = torch.zeros((), device=ranks.device)
    pieces = own_pieces(rows, ranks, config.micro_batch)
    for index, piece in enumerate(pieces):
        at_once = ranks.count > 1 or index == len(pieces) - 1
        model.set_requires_gradient_sync(at_once)  # type: ignore[operator]
        loss, objective = token_losses(model(piece[:, :-1]), piece[:, 1:], config.inner.z_loss)
        # FSDP averages gradients over the ranks. Undo that, and divide by the block's tokens.
        (objective * (ranks.count / tokens)).backward()
        loss_sum += loss.detach()
    return loss_sum


@torch.no_grad()
def loss_on(rows: Tokens, model: Llama, ranks: Ranks, config: TrainerConfig) -> float:
    """Return the block's summed cross-entropy in nats, without training."""
    loss_sum = torch.zeros((), device=ranks.device)
    for piece in own_pieces(rows, ranks, config.micro_batch):
        loss_sum += token_losses(model(piece[:, :-1]), piece[:, 1:], 0.0)[0]
    forget_gathered(model)
    return float(ranks.sum(loss_sum))
