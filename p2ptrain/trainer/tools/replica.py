"""One peer's model and inner optimizer in this process, on a flat vector shared with numpy.

Use this to simulate peers, not to train in a run: there are no shards, no arena and no node. Model,
loss, optimizer, clipping and rounding to bf16 are the trainer's own. FSDP2 is left out, because its
cost would arise for each of a dozen peers in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from p2ptrain.data.blocks import Tokens
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Precision
from p2ptrain.state.layout import Layout, LayoutEntry
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.batch import predicted_tokens
from p2ptrain.trainer.rank.bf16_emulation import multiplies_bf16, round_products
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.rank.optimizer import clip_gradients, make_optimizer

Floats = NDArray[np.float32]

ADAMW_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the state that AdamW keeps for each parameter, besides its step count."""

MUON_MOMENTS = ("momentum_buffer",)
"""Name of the state that Muon keeps for a matrix inside a block."""


def one_thread() -> None:
    """Compute with one thread from now on. Results are then bit-identical on all machines of the
    same kind, and several processes can run in parallel."""
    torch.set_num_threads(1)


class Replica:
    """A simulated peer. Its weights start at zero, and its optimizer starts without a state."""

    def __init__(
        self, model: ModelSpec, inner: InnerSpec, precision: Precision, *, compiled: bool = False
    ) -> None:
        self._inner = inner
        self._losses = _losses_of(model, precision, inner.z_loss, compiled)
        self._layout = layout_of(model)
        self._model = Llama(model)
        self._flat = torch.zeros(self._layout.numel)
        self._places = _lay(self._model, self._layout, self._flat)
        self._optimizer = make_optimizer(self._model, inner)

    @property
    def weights(self) -> Floats:
        """The parameters as one vector in the canonical layout. Write to this vector to set the
        parameters."""
        return self._flat.numpy()

    def train(
        self, rows: Tokens, rate: float, *, micro_batch: int = 0, targets: Tokens | None = None
    ) -> float:
        """Do one inner step. Return the mean cross-entropy in nats before the step.

        `micro_batch` is the number of rows per forward pass; 0 means all rows. `targets` replaces
        the tokens to predict, to simulate a peer that trains on wrong labels.

        Raises TrainerDiverged if loss or gradient is not finite.
        """
        tokens = predicted_tokens(rows)
        batch = torch.from_numpy(rows)
        wanted = batch[:, 1:] if targets is None else torch.from_numpy(targets)
        mean = 0.0
        for first in range(0, len(rows), micro_batch or len(rows)):
            piece = slice(first, first + (micro_batch or len(rows)))
            weights = dict[str, Tensor](self._model.named_parameters())
            loss, objective = self._losses(weights, batch[piece, :-1], wanted[piece])
            (objective / tokens).backward()
            mean += float(loss.detach()) / tokens
        norm = clip_gradients(self._model.parameters(), self._inner.clip)
        if not math.isfinite(mean) or not math.isfinite(norm):
            raise TrainerDiverged(f"the loss is {mean} and the gradient's norm {norm}")
        self._optimizer.set_rate(rate)
        self._optimizer.step()
        self._optimizer.forget_gradients()
        return mean

    @torch.no_grad()
    def losses_of(self, weights: Floats, rows: Tokens) -> Floats:
        """Return the cross-entropy of these weights on each predicted token, computed in fp32. A
        row of n + 1 tokens has n predicted tokens."""
        kept = self._flat.clone()
        self._flat.copy_(torch.from_numpy(weights))
        found = []
        for piece in np.array_split(rows, max(1, len(rows) // 16)):
            batch = torch.from_numpy(piece)
            logits = self._model(batch[:, :-1]).transpose(1, 2)
            found.append(F.cross_entropy(logits, batch[:, 1:], reduction="none").numpy())
        self._flat.copy_(kept)
        return np.concatenate(found)

    def loss_of(self, weights: Floats, rows: Tokens) -> float:
        """Return the mean of `losses_of`."""
        return float(self.losses_of(weights, rows).mean(dtype=np.float64))

    def moments(self) -> dict[str, Floats]:
        """Return a copy of the optimizer's state as flat vectors, and its step count ("step")."""
        names = ADAMW_MOMENTS + (MUON_MOMENTS if self._inner.is_muon else ())
        kept = {name: np.zeros(self._layout.numel, np.float32) for name in names}
        steps = 0.0
        for parameter, entry in self._places:
            state = self._optimizer.state_of(parameter)
            steps = float(state.get("step", steps))
            for name in kept.keys() & state.keys():
                kept[name][entry.offset : entry.end] = state[name].flatten().numpy()
        return {**kept, "step": np.array([steps], np.float32)}

    def set_moments(self, moments: dict[str, Floats]) -> None:
        """Replace the optimizer's state by `moments`, which `moments()` returned earlier."""
        for parameter, entry in self._places:
            run = slice(entry.offset, entry.end)
            has_muon = self._optimizer.has_muon(parameter)
            names = MUON_MOMENTS if has_muon else ADAMW_MOMENTS
            kept = {name: torch.from_numpy(moments[name][run].copy()) for name in names}
            state = self._optimizer.state_of(parameter)
            state.update({name: flat.view(parameter.shape) for name, flat in kept.items()})
            if not has_muon:
                state["step"] = torch.tensor(float(moments["step"][0]))


Losses = Callable[[Mapping[str, Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps parameters by name, tokens and targets to the cross-entropy and the objective."""


@cache
def _losses_of(model: ModelSpec, precision: Precision, z_loss: float, compiled: bool) -> Losses:
    """Return the function that computes losses. All peers of a process share this function, so that
    it is compiled only once."""
    skeleton = Llama(model)
    skeleton(torch.zeros(1, model.sequence, dtype=torch.int64))  # This call makes the rotary table.
    if precision == "bf16" and not multiplies_bf16("cpu"):
        round_products(skeleton)

    def losses(
        weights: Mapping[str, Tensor], tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        if precision == "fp32":
            logits = torch.func.functional_call(skeleton, dict(weights), (tokens,))
            return token_losses(logits, targets, z_loss)
        # As in FSDP2's mixed precision, parameters and everything computed from them are bf16.
        rounded = {name: each.to(torch.bfloat16) for name, each in weights.items()}
        # Use unfused attention: for short sequences, torch's fused attention in bf16 makes a step
        # on a CPU 10 to 50 % slower. In fp32 both are equally fast.
        with sdpa_kernel(SDPBackend.MATH):
            logits = torch.func.functional_call(skeleton, rounded, (tokens,))
        return token_losses(logits, targets, z_loss)

    return torch.compile(losses, dynamic=False) if compiled else losses


def _lay(model: nn.Module, layout: Layout, flat: Tensor) -> list[tuple[nn.Parameter, LayoutEntry]]:
    """Make the model's parameters views of `flat`. Return them with their places in the layout."""
    parameters = dict(model.named_parameters())
    places = []
    for entry in layout.entries:
        parameter = parameters[entry.name]
        parameter.data = flat[entry.offset : entry.end].view(entry.shape)
        places.append((parameter, entry))
    assert len(places) == len(parameters)
    return places
