"""Compare contributions that are quantised once with sums that are quantised on their way.

`python -m scripts.research.learning.quantised_once` prints the error of the mean for random vectors
and for pseudo-gradients of a small model, and what the errors of many means add up to.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from p2ptrain import kernels
from p2ptrain.config.run_file import usual_block
from p2ptrain.data.blocks import Tokens
from p2ptrain.data.text import standard_library_text
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.kernels import Codec, CodecName
from p2ptrain.ring.schedules import SCHEDULES, Schedule
from p2ptrain.ring.source import Difference, Source, quantised_once
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.tools.replica import Replica, one_thread
from scripts.research.learning.averaging import average_of

Floats = NDArray[np.float32]
Mean = Callable[[Sequence[Floats], Sequence[int], Codec, Schedule], bytes]
"""Called with vectors, weights, codec and schedule. Returns the update."""

PEERS = (4, 6, 16)
CODECS: tuple[CodecName, ...] = ("int8", "int4")
ELEMENTS = 1 << 18

FEEDBACK_PEERS, FEEDBACK_ELEMENTS = 4, 1 << 15

MODEL = ModelSpec(vocab=256, layers=2, width=64, heads=2, kv_heads=2, ffn=160, sequence=64)
INNER = InnerSpec(steps=16, batch_sequences=8, lr=2e-3, warmup_steps=0, total_steps=10_000)
OUTER_LR, MOMENTUM = 0.7, 0.9
TEXT_BYTES = 4_000_000


def on_its_way(
    vectors: Sequence[Floats], weights: Sequence[int], codec: Codec, schedule: Schedule
) -> bytes:
    """Return the update of a reduce that adds each peer's own vector in fp32, as nodes do."""
    zeros = np.zeros_like(vectors[0])
    sources = [Difference(each, zeros) for each in vectors]
    return average_of(sources, weights, codec, schedule)


def once(
    vectors: Sequence[Floats], weights: Sequence[int], codec: Codec, schedule: Schedule
) -> bytes:
    """Return the update of a reduce whose contributions were quantised once."""
    zeros = np.zeros_like(vectors[0])
    sources = [quantised_once(each, zeros, codec) for each in vectors]
    return average_of(sources, weights, codec, schedule)


WAYS: dict[str, Mean] = {"on its way": on_its_way, "once": once}


def error(
    mean: Mean, vectors: Sequence[Floats], weights: Sequence[int], codec: Codec, schedule: Schedule
) -> float:
    """Return |mean − exact mean| ÷ |exact mean|, in float64."""
    told = np.empty_like(vectors[0])
    codec.dequantise(mean(vectors, weights, codec, schedule), told)
    exact = np.average(np.asarray(vectors, np.float64), axis=0, weights=weights)
    return float(np.linalg.norm(told - exact) / np.linalg.norm(exact))


def usual(name: CodecName) -> Codec:
    return kernels.codec(name, usual_block(name))


def unequal(peers: int) -> tuple[int, ...]:
    """Return weights from 1 to 20, as for peers whose speeds differ by this factor."""
    return tuple(1 + 19 * number // max(1, peers - 1) for number in range(peers))


# -- pseudo-gradients of a small model ----------------------------------------------------------


class Swarm:
    """Peers that train a small model on text and average after each outer step."""

    def __init__(self, peers: int, mean: Mean, codec: Codec, schedule: Schedule, seed: int) -> None:
        self.theta = genesis(MODEL, seed)
        self._momentum = np.zeros_like(self.theta)
        self._replicas = [Replica(MODEL, INNER, "fp32") for _ in range(peers)]
        self._mean, self._codec, self._schedule = mean, codec, schedule
        self._rows = rows_of_text(seed)
        self._used = 0

    def train(self) -> list[Floats]:
        """Let each peer do its inner steps. Return the pseudo-gradients."""
        found = []
        for replica in self._replicas:
            np.copyto(replica.weights, self.theta)
            for _ in range(INNER.steps):
                places = np.arange(self._used, self._used + INNER.batch_sequences)
                replica.train(self._rows[places % len(self._rows)], INNER.lr)
                self._used += INNER.batch_sequences
            found.append(self.theta - replica.weights)
        return found

    def outer_step(self) -> None:
        vectors = self.train()
        update = self._mean(vectors, [1] * len(vectors), self._codec, self._schedule)
        self._codec.outer_step(self.theta, self._momentum, update, OUTER_LR, MOMENTUM)


def rows_of_text(seed: int) -> Tokens:
    """Return rows for training, as bytes of text [rows, sequence + 1]."""
    text = "".join(standard_library_text(TEXT_BYTES)).encode()
    width = MODEL.sequence + 1
    rows = np.frombuffer(text, np.uint8)[: len(text) // width * width].reshape(-1, width)
    return rows[np.random.default_rng(seed).permutation(len(rows))].astype(np.int64)


def gradients_of(peers: int, outer_steps: int) -> list[Floats]:
    """Return the pseudo-gradients of an outer step, after some earlier ones."""
    swarm = Swarm(peers, on_its_way, usual("fp32"), "direct", seed=1)
    for _ in range(outer_steps):
        swarm.outer_step()
    return swarm.train()


# -- error feedback -----------------------------------------------------------------------------


class Feedback:
    """Peers that average new random vectors again and again, with or without error feedback."""

    def __init__(self, codec: Codec, schedule: Schedule, *, is_once: bool, keeps: bool) -> None:
        self._codec, self._schedule = codec, schedule
        self._is_once, self._keeps = is_once, keeps
        self._random = np.random.default_rng(1)
        self._kept = [np.zeros(FEEDBACK_ELEMENTS, np.float32) for _ in range(FEEDBACK_PEERS)]
        self._off = np.zeros(FEEDBACK_ELEMENTS)

    def step(self) -> None:
        shape = FEEDBACK_PEERS, FEEDBACK_ELEMENTS
        vectors = self._random.standard_normal(shape, np.float32)
        zeros = np.zeros(FEEDBACK_ELEMENTS, np.float32)
        lost = [np.zeros_like(zeros) for _ in vectors]
        kept = [(each, each) if self._keeps else (None, None) for each in self._kept]
        sources: list[Source] = [Difference(each, zeros) for each in vectors]
        if self._is_once:
            sources = [
                quantised_once(each, zeros, self._codec, residual=old, residual_out=new)
                for each, (old, new) in zip(vectors, kept, strict=True)
            ]
            kept = [(None, each) for each in lost]
        update = average_of(
            sources, [1] * FEEDBACK_PEERS, self._codec, self._schedule, residuals=kept
        )
        if self._keeps:
            for residual, more in zip(self._kept, lost, strict=True):
                residual += more
        told = np.empty_like(zeros)
        self._codec.dequantise(update, told)
        self._off += told - vectors.mean(axis=0, dtype=np.float64)

    def off(self) -> float:
        """Return the norm of the sum of all errors, divided by the norm of one exact mean."""
        one_mean = np.sqrt(FEEDBACK_ELEMENTS / FEEDBACK_PEERS)
        return float(np.linalg.norm(self._off) / one_mean)


def feedback(steps: int) -> Iterator[str]:
    """Yield a row of a table for each codec and schedule: the sum of the errors of all means."""
    for name in CODECS:
        for schedule in SCHEDULES:
            found = []
            for is_once, keeps in product((False, True), (False, True)):
                peers = Feedback(usual(name), schedule, is_once=is_once, keeps=keeps)
                for _ in range(steps):
                    peers.step()
                found.append(f"{peers.off():.3f}")
            yield f"| {name} | {schedule} | {' | '.join(found)} |"


# -- reports ------------------------------------------------------------------------------------


def errors(kind: str, vectors: Sequence[Floats]) -> Iterator[str]:
    """Yield a row of a table for each codec, schedule and choice of weights."""
    peers = len(vectors)
    for name in CODECS:
        for schedule in SCHEDULES:
            for label, weights in (("equal", (1,) * peers), ("1 to 20", unequal(peers))):
                found = [
                    f"{error(mean, vectors, weights, usual(name), schedule):.4f}"
                    for mean in WAYS.values()
                ]
                yield f"| {kind} | {peers} | {name} | {schedule} | {label} | {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["random", "model", "feedback"])
    parser.add_argument("--outer-steps", type=int, default=10)
    chosen = parser.parse_args()
    one_thread()
    begun = time.process_time()
    for line in _lines(chosen.what, chosen.outer_steps):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{time.process_time() - begun:.0f} CPU seconds\n")


def _lines(what: str, outer_steps: int) -> Iterator[str]:
    if what == "feedback":
        yield from feedback(outer_steps)
    elif what == "model":
        for peers in PEERS:
            yield from errors(what, gradients_of(peers, outer_steps))
    else:
        for peers in PEERS:
            random = np.random.default_rng(peers)
            yield from errors(what, list(random.standard_normal((peers, ELEMENTS), np.float32)))


if __name__ == "__main__":
    main()
