"""Estimate the memory that a trainer needs from the model's sizes alone.

Weights, gradients, optimizer state and the other vectors are counted exactly. Activations are
estimated (`block_activations`, `end_activations`); a test compares the estimate with what torch
keeps. The estimate leaves out fragmentation, the kernels' workspace and the CUDA context (together
a gigabyte or more), and memory that torch's allocator keeps for later use.

All numbers are for one peer. Its ranks divide the vectors among them, and each rank has the
activations of its own sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.trainer.formats.shapes import parameter_count, parameters

FP32_BYTES = 4
EAGER_VECTORS = 3
"""Number of model-sized vectors in a `Deviation`, which only runs with `sync.eager` have."""
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory in bytes. Activations are those of one sequence; a trainer computes one or more
    sequences at once."""

    weights: int
    gathered: int
    """The copy of the weights that FSDP2 gathers for computation. A single rank also has such a
    copy, and keeps all of it from the forward to the backward pass. With several ranks, each rank
    holds the copy of one or two blocks at a time, and of embedding and head."""
    gradients: int
    optimizer: int
    anchor: int
    """A copy of θ as it was last read, from which the trainer computes how much θ has changed."""
    eager: int
    """The three vectors of a `Deviation`; 0 without `sync.eager`. A report needs two more vectors
    for a short time. They are not counted, because gradients and activations are freed by then."""
    activations: int
    activations_recomputed: int
    """Activations with `--recompute`: each block keeps its input, and only one block at a time
    keeps its other activations."""

    @property
    def vectors(self) -> int:
        """Bytes of all vectors that are as long as the model."""
        kept = self.weights + self.gradients + self.optimizer + self.anchor + self.eager
        return kept + self.gathered

    @property
    def least(self) -> int:
        """Minimum bytes for a peer of one rank: one sequence at a time, with recomputation."""
        return self.vectors + self.activations_recomputed


def trainer_memory(
    model: ModelSpec, inner: InnerSpec, precision: Precision, *, eager: bool
) -> TrainerMemory:
    """Return the memory that a trainer needs. Only activations and gathered weights depend on
    `precision`; everything else is fp32."""
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
    """Return the number of elements of matrices inside the blocks, for which Muon keeps one moment
    instead of two."""
    inside = (p.shape for p in parameters(model) if p.name.startswith("blocks."))
    return sum(math.prod(shape) for shape in inside if len(shape) == 2)


def block_activations(model: ModelSpec, element: int) -> int:
    """Return the bytes that a block keeps for each position for its backward pass.

    8 W                   the inputs of both norms, in fp32
    e · (2 W)             the outputs of both norms
    e · (2 W + 2 K)       queries, keys, values, and the output of attention
    e · W                 the output of attention again, with its heads concatenated
    e · 4 F               the gate, SiLU of the gate, up, and the product of the last two

    for width W, key width K, feed-forward width F and elements of e bytes. Attention itself does
    not keep a T × T matrix. Document masks and QK norm keep more, which is not counted here.
    """
    width, keys = model.width, model.kv_heads * model.head_width
    return 2 * FP32_BYTES * width + element * (5 * width + 2 * keys + 4 * model.ffn)


def end_activations(model: ModelSpec, element: int) -> int:
    """Return the bytes that are kept for each position after the blocks: the inputs of norm and
    head, three fp32 vectors (logits, log-softmax, and its gradient), and the logits in their
    original type."""
    logits = (3 * FP32_BYTES + element) * model.vocab
    return FP32_BYTES * model.width + element * model.width + logits
