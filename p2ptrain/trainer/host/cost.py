"""What a model takes of the memory of machines that train it, from its sizes alone.

Weights, gradients, optimizer state and what is kept beside them are counted exactly; activations
are an estimate whose formula stands here, and which a test compares with what torch keeps.
Fragmentation, the kernels' workspace and the CUDA context (a gigabyte together, or more) are not
counted, nor what a caching allocator holds on to.

All of it is for one peer; its ranks share it, each taking its part, but for the activations, of
which each rank has those of its own sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.trainer.formats.shapes import parameter_count, parameters

FP32_BYTES = 4
EAGER_VECTORS = 3
"""`deviation.Deviation` has them."""
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """In bytes. Activations are of one sequence, of which a micro-batch has one or more."""

    weights: int
    gathered: int
    """The weights as they are computed with, of which FSDP2 makes a copy, with one rank as well. It
    has all of them from the forward pass to the backward one; of several ranks each has those of a
    block or two, and the ends.
    """
    gradients: int
    optimizer: int
    anchor: int
    """θ as it was last read: what says how far it has moved since."""
    eager: int
    """A deviation, its momentum, and what is in it of the newest work. While a trainer reports, two
    more such vectors take the place of gradients and activations."""
    activations: int
    activations_recomputed: int
    """With `--recompute`: each block keeps its input alone, and one block at a time the rest."""

    @property
    def vectors(self) -> int:
        """All that has the length of the model."""
        kept = self.weights + self.gradients + self.optimizer + self.anchor + self.eager
        return kept + self.gathered

    @property
    def least(self) -> int:
        """The least that one rank can do with: one sequence at a time, and recomputed."""
        return self.vectors + self.activations_recomputed


def trainer_memory(
    model: ModelSpec, inner: InnerSpec, precision: Precision, *, eager: bool
) -> TrainerMemory:
    """All but activations and gathered weights is kept in fp32 whatever is computed in."""
    count = parameter_count(model)
    moments = 2 * count - (_muon_elements(model) if inner.is_muon else 0)
    one_copy = count * FP32_BYTES
    element = ELEMENT_BYTES[precision]
    block, ends = block_activations(model, element), end_activations(model, element)
    kept = model.sequence * (block * model.layers + ends)
    recomputed = model.sequence * (model.width * element * model.layers + block + ends)
    return TrainerMemory(
        weights=one_copy,
        gathered=count * element,
        gradients=one_copy,
        optimizer=moments * FP32_BYTES,
        anchor=one_copy,
        eager=EAGER_VECTORS * one_copy if eager else 0,
        activations=kept,
        activations_recomputed=recomputed,
    )


def _muon_elements(model: ModelSpec) -> int:
    """In matrices inside the blocks, for which Muon keeps one moment instead of two."""
    inside = (p.shape for p in parameters(model) if p.name.startswith("blocks."))
    return sum(math.prod(shape) for shape in inside if len(shape) == 2)


def block_activations(model: ModelSpec, element: int) -> int:
    """Bytes that a block keeps of each position for its backward pass.

    8 W                   the inputs of both norms, in fp32
    e · (2 W)             what comes out of them
    e · (2 W + 2 K)       queries, keys and values as they are attended with, and what comes of it
    e · W                 the same with its heads side by side
    e · 4 F               gate, its SiLU, up, and the product

    for width W, key width K, feed-forward width F and elements of e bytes. Attention itself keeps
    no T × T matrix; with document masks, or QK norm, more is kept than is counted here.
    """
    width, keys = model.width, model.kv_heads * model.head_width
    return 2 * FP32_BYTES * width + element * (5 * width + 2 * keys + 4 * model.ffn)


def end_activations(model: ModelSpec, element: int) -> int:
    """The same for what comes after the blocks: norm and head; three copies of the logits in fp32
    (themselves, their logarithmic softmax, and its gradient), and the logits as they were made."""
    logits = (3 * FP32_BYTES + element) * model.vocab
    return FP32_BYTES * model.width + element * model.width + logits
