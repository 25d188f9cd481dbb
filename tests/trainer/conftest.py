"""Fixtures: a tiny model with its data and its arena in this process, and a simulated node that
sends a list of orders."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pytest
import torch

from p2ptrain.data.blocks import encode_block
from p2ptrain.ipc.frames import Frame, Progress, Stop
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, TrainerConfig
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.arena import RankArena, map_vector
from p2ptrain.trainer.rank.inner_state import InnerState
from p2ptrain.trainer.rank.loop import USUAL_MEANS, Means, TrainerLoop
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.optimizer import InnerOptimizer, make_optimizer
from p2ptrain.trainer.rank.parallelize import build
from p2ptrain.trainer.rank.ranks import Ranks, open_ranks

# Odd sizes: two ranks cannot evenly divide vocab, ffn or the batch.
MODEL = ModelSpec(vocab=301, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=16)
INNER = InnerSpec(steps=4, batch_sequences=5, lr=1e-2, warmup_steps=2, total_steps=400)
DEVICE = os.environ.get("P2PTRAIN_TEST_DEVICE", "cpu")
"""The device on which tests train. scripts/gpu_check sets it to a GPU for those tests that train
inside the pytest process. Separate trainer processes always use the CPU, since two ranks would need
a GPU each."""
THREADS = int(os.environ.get("P2PTRAIN_TEST_THREADS", "1"))
"""CPU threads of each trainer. scripts/test_matrix sets the variable. Trainer processes inherit
it."""
CONFIG = TrainerConfig(MODEL, INNER, device=DEVICE, threads=THREADS)  # type: ignore[arg-type]


@dataclass
class Vectors:
    """The node's view of the memory that it shares with a trainer: θ, and `local` for the trained
    weights."""

    layout: Layout
    theta_fd: int
    local_fd: int
    theta: np.ndarray
    local: np.ndarray

    @property
    def covered(self) -> np.ndarray:
        """A mask that is True at parameters and False in the padding."""
        mask = np.zeros(self.layout.numel, dtype=bool)
        for entry in self.layout.entries:
            mask[entry.offset : entry.end] = True
        return mask

    def at(self, vector: np.ndarray, name: str) -> np.ndarray:
        entry = next(entry for entry in self.layout.entries if entry.name == name)
        return vector[entry.offset : entry.end].reshape(entry.shape)


@pytest.fixture
def vectors() -> Iterator[Vectors]:
    layout = layout_of(MODEL)
    fds = [os.memfd_create(name) for name in ("theta", "local")]
    for fd in fds:
        os.ftruncate(fd, layout.numel * 4)
    theta, local = (np.frombuffer(mmap.mmap(fd, layout.numel * 4), np.float32) for fd in fds)
    theta[:] = genesis(MODEL, seed=0)
    yield Vectors(layout, fds[0], fds[1], theta, local)
    for fd in fds:
        os.close(fd)


@pytest.fixture(scope="session")
def block_paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return twelve blocks of tokens in which the next token is easy to learn."""
    folder = tmp_path_factory.mktemp("blocks")
    random = np.random.default_rng(0)
    paths = []
    for index in range(12):
        start = random.integers(0, 40, (INNER.batch_sequences, 1))
        rows = (start + 3 * np.arange(MODEL.sequence + 1)) % 120
        paths.append(folder / f"block-{index}")
        paths[-1].write_bytes(encode_block(rows, MODEL.vocab))
    return tuple(map(str, paths))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    torch.set_num_threads(THREADS)
    with open_ranks(DEVICE, store_fd=None) as ranks:
        yield ranks


AnyFrame = TypeVar("AnyFrame", bound=Frame)


@dataclass
class Script:
    """A simulated node. It sends the next frame of `frames` when the trainer is idle, and the frame
    `after[n]` once the trainer has made n inner steps in total. After the last frame, it sends
    Stop. `heard` contains the trainer's answers."""

    frames: list[Frame] = field(default_factory=list)
    after: dict[int, Frame] = field(default_factory=dict)
    heard: list[Frame] = field(default_factory=list)

    def send(self, frame: Frame) -> None:
        self.heard.append(frame)

    def receive(self, timeout_s: float) -> Frame | None:
        steps = sum(isinstance(frame, Progress) for frame in self.heard)
        if steps in self.after:
            return self.after.pop(steps)
        if timeout_s == 0:
            return None
        return self.frames.pop(0) if self.frames else Stop()


@dataclass
class Driver:
    """A trainer in this process: `send` passes frames to it and returns its answers."""

    loop: TrainerLoop
    script: Script
    arena: RankArena
    model: Llama
    optimizer: InnerOptimizer

    def send(self, *frames: Frame, after: dict[int, Frame] | None = None) -> list[Frame]:
        self.script.frames, self.script.after, self.script.heard = list(frames), after or {}, []
        self.loop.run()
        return self.script.heard

    def last(self, kind: type[AnyFrame], *frames: Frame) -> AnyFrame:
        """Send frames to the trainer, and return its last answer, which must be of this kind."""
        answer = self.send(*frames)[-1]
        assert isinstance(answer, kind)
        return answer


class MakeDriver(Protocol):
    """The fixture `make_driver`: make a trainer with these settings. The model is always built with
    the usual ranks; the training loop then uses `ranks`."""

    def __call__(
        self, config: TrainerConfig, *, ranks: Ranks | None = None, means: Means = USUAL_MEANS
    ) -> Driver: ...


@pytest.fixture
def make_driver(vectors: Vectors, ranks: Ranks) -> MakeDriver:
    usual = ranks

    def make(
        config: TrainerConfig, *, ranks: Ranks | None = None, means: Means = USUAL_MEANS
    ) -> Driver:
        ranks = usual if ranks is None else ranks
        model = build(config, usual)
        numel = vectors.layout.numel
        theta, local = map_vector(vectors.theta_fd, numel), map_vector(vectors.local_fd, numel)
        count, eager = config.fragments, config.eager
        arena = RankArena(model, vectors.layout, theta, local, count=count, eager=eager)
        optimizer = make_optimizer(model, config.inner)
        folder, layout, state = config.state_folder, vectors.layout, None
        if folder:
            state = InnerState(Path(folder), model, optimizer, layout, ranks)
        script = Script()
        loop = TrainerLoop(config, model, optimizer, arena, ranks, script, state, means)  # type: ignore[arg-type]
        return Driver(loop, script, arena, model, optimizer)

    return make


@pytest.fixture
def config() -> TrainerConfig:
    return CONFIG


@pytest.fixture
def on_cpu(config: TrainerConfig) -> TrainerConfig:
    return replace(config, device="cpu")


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(CONFIG)
