"""Estimate the memory that a trainer needs from the model's sizes alone.

Weights, gradients, optimizer state and the other vectors are counted exactly. Activations are
estimated by the formula below; a test compares it with what torch keeps. The estimate leaves out
fragmentation, the kernels' workspace and the CUDA context (together a gigabyte or more), and memory
that a caching allocator holds back.

All numbers are for one peer. Its ranks share the vectors, and each rank has the activations of its
own sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.trainer.formats.shapes import parameter_count, parameters

FP32_BYTES = 4
EAGER_VECTORS = 3
"""Number of vectors of `deviation.Deviation`."""
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory in bytes. Activations are for one sequence; a micro-batch has one or more."""

    weights: int
    gathered: int
    """FSDP2's copy of the weights to compute with. A single rank also has this copy, and keeps all
    of it from the forward to the backward pass. With several ranks, each holds the copy of a block
    or two, and of embedding and head.
    """
    gradients: int
    optimizer: int
    anchor: int
    """θ as it was last read, to compute how far it has moved since."""
    eager: int
    """The three vectors of an eager trainer's `Deviation`. While a trainer reports, two more such
    vectors exist; gradients and activations do not exist at that time."""
    activations: int
    activations_recomputed: int
    """Activations with `--recompute`: each block keeps its input, and one block at a time keeps the
    rest."""

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
    """Return the memory that a trainer needs. `precision` affects activations and gathered weights
    only; everything else is fp32."""
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
    e · W                 that output, its heads concatenated
    e · 4 F               gate, its SiLU, up, and the product

    for width W, key width K, feed-forward width F and elements of e bytes. Attention itself does
    not keep a T × T matrix. Document masks and QK norm keep more, which is not counted here.
    """
    width, keys = model.width, model.kv_heads * model.head_width
    return 2 * FP32_BYTES * width + element * (5 * width + 2 * keys + 4 * model.ffn)


def end_activations(model: ModelSpec, element: int) -> int:
    """Return the bytes kept for each position after the blocks: norm and head, three fp32 vectors
    of logits (logits, log-softmax, and its gradient), and the logits in their original type."""
    logits = (3 * FP32_BYTES + element) * model.vocab
    return FP32_BYTES * model.width + element * model.width + logits
