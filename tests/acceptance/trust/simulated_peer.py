"""Simulated peers that train on leased blocks, keep checkpoints, and can be told to cheat.

Model, loss, optimizer and schedule are the trainer's own (`trainer.tools.replica`). The text is the
source of Python's standard library, as bytes. Each block is the data of one inner step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.blocks import Tokens
from p2ptrain.data.text import standard_library_text
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Optimizer, Precision, Schedule
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.tools.replica import Replica

Floats = NDArray[np.float32]
Moments = dict[str, Floats]

MODEL = ModelSpec(vocab=256, layers=2, width=64, heads=2, kv_heads=2, ffn=160, sequence=64)
ROWS = 8
"""Sequences of a block."""
RATES = {"adamw": 2e-3, "muon": 4e-3}
TEXT_BYTES = 6_000_000


@cache
def text_rows() -> Tokens:
    """Return all rows [rows, sequence + 1] of the text, shuffled."""
    text = "".join(standard_library_text(TEXT_BYTES)).encode()
    wide = MODEL.sequence + 1
    rows = np.frombuffer(text, np.uint8)[: len(text) // wide * wide].reshape(-1, wide)
    order = np.random.Generator(np.random.Philox(key=7)).permutation(len(rows))
    return rows[order].astype(np.int64)


def block(number: int) -> Tokens:
    """Return the rows of a block. Blocks repeat when the text is used up."""
    first = number % (len(text_rows()) // ROWS) * ROWS
    return text_rows()[first : first + ROWS]


def inner_spec(
    optimizer: Optimizer,
    schedule: Schedule = "constant",
    total_steps: int = 10_000,
    warmup: int = 0,
) -> InnerSpec:
    return InnerSpec(
        steps=16,
        batch_sequences=ROWS,
        lr=RATES[optimizer],
        warmup_steps=warmup,
        total_steps=total_steps,
        schedule=schedule,
        optimizer=optimizer,
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """Numerical differences between honest peers: precision and rows per forward pass."""

    precision: Precision = "fp32"
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Weights and optimizer of a peer after some of its inner steps."""

    weights: Floats
    moments: Moments


@dataclass(slots=True)
class SimulatedPeer:
    """A replica that can be set to any weights and moments."""

    inner: InnerSpec
    machine: Machine = field(default_factory=Machine)
    _replica: Replica = field(init=False)

    def __post_init__(self) -> None:
        self._replica = Replica(MODEL, self.inner, self.machine.precision)

    def start_run(self, seed: int) -> Point:
        return Point(genesis(MODEL, seed), self._replica.moments())

    def train(
        self,
        start: Point,
        blocks: Sequence[int | None],
        first_step: int,
        *,
        every: int = 0,
        rate_factor: float = 1.0,
        rows_of: Callable[[Tokens], Tokens] = lambda rows: rows,
        targets_of: Callable[[Tokens], Tokens] | None = None,
    ) -> list[Point]:
        """Train on `blocks`, and return the points at the start, after every `every` blocks, and at
        the end. None stands for a block that a cheating peer skips. `first_step` is the run's inner
        step of the first block."""
        replica = self._replica
        np.copyto(replica.weights, start.weights)
        replica.set_moments(start.moments)
        points = [start]
        for number, each in enumerate(blocks):
            if each is not None:
                rows = rows_of(block(each))
                targets = None if targets_of is None else targets_of(rows[:, 1:])
                rate = rate_factor * learning_rate(self.inner, first_step + number)
                replica.train(rows, rate, micro_batch=self.machine.micro_batch, targets=targets)
            if number + 1 == len(blocks) or (every and (number + 1) % every == 0):
                points.append(self.point())
        return points

    def point(self) -> Point:
        return Point(self._replica.weights.copy(), self._replica.moments())

    def losses(self, weights: Floats, blocks: Sequence[int]) -> NDArray[np.float64]:
        """Return the mean loss of each row of the blocks, in nats a token."""
        rows = np.concatenate([block(each) for each in blocks])
        of_tokens = self._replica.losses_of(weights, rows)
        return np.asarray(of_tokens.mean(axis=1, dtype=np.float64))
