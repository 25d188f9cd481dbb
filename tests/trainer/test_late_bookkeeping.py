"""Under random events, each report of a trainer must describe the weights that the trainer has
written for the node. A simple independent model (`ought`) says what a trainer should report."""

from __future__ import annotations

import mmap
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from p2ptrain.ipc.frames import Frame
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, TrainerConfig
from p2ptrain.sync.fragments import fragments
from p2ptrain.sync.trainer_orders import LeasePace
from p2ptrain.testing import fake_trainer
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.arena import RankArena, map_vector, own_share
from p2ptrain.trainer.rank.batch import InnerStep
from p2ptrain.trainer.rank.loop import Means, TrainerLoop
from p2ptrain.trainer.rank.optimizer import make_optimizer
from p2ptrain.trainer.rank.parallelize import build
from p2ptrain.trainer.rank.ranks import Ranks
from tests.trainer.late_node import LateNode, Trainer
from tests.trainer.ought import Ought, Vector

MODEL = ModelSpec(vocab=29, layers=2, width=8, heads=2, kv_heads=1, ffn=12, sequence=4)
LAYOUT = layout_of(MODEL)
INNER = InnerSpec(steps=4, batch_sequences=2, lr=1e-2, warmup_steps=2, total_steps=400)
BLOCK_TOKENS = INNER.batch_sequences * MODEL.sequence
EVENTS, SEEDS = 250, 9

COVERED = np.zeros(LAYOUT.numel, dtype=bool)
for _entry in LAYOUT.entries:
    COVERED[_entry.offset : _entry.end] = True


@dataclass(frozen=True)
class Mode:
    pace: LeasePace
    fragments: int = 1
    mixing: float = 0.0
    delayed: bool = False
    eager: bool = False


MODES = {
    "plain": Mode(LeasePace(2)),
    "overlapping": Mode(LeasePace(3, 1)),
    "fragments": Mode(LeasePace(2), fragments=3),
    "streaming": Mode(LeasePace(2, 1), fragments=3),
    "streaming with the longest delay": Mode(LeasePace(2, 2), fragments=3),
    "streaming, mixed": Mode(LeasePace(3, 2), fragments=3, mixing=0.5),
    "one step late": Mode(LeasePace(2, 2), delayed=True),
    "eager": Mode(LeasePace(2, 2), delayed=True, eager=True),
}

ODDS = {
    "obey": 30,
    "inner_step": 30,
    "hear": 30,
    "order": 30,
    "apply": 15,
    "open_roster": 10,
    "reduce": 10,
    "commit": 6,
    "skip": 1.5,
    "kill": 0.7,
    "restart": 0.3,
    "evict": 0.4,
    "admit": 4,
    "amend": 1.5,
    "data": 6,
}


Shared = list[tuple[int, np.ndarray]]
"""θ and `local` as shared memory."""


class Traces(dict[str, Vector]):
    """The vector that training on each block subtracts from the weights (its trace). Its elements
    are whole numbers, so that sums are exact."""

    def __missing__(self, path: str) -> Vector:
        made = np.random.default_rng(int(path)).integers(1, 9, LAYOUT.numel).astype(np.float64)
        self[path] = made * COVERED
        return self[path]


@dataclass
class Held:
    """A trainer's loop whose channel is controlled by the test."""

    loop: TrainerLoop | fake_trainer.FakeTrainerLoop = field(init=False)
    said: list[Frame] = field(default_factory=list)

    def send(self, frame: Frame) -> None:
        self.said.append(frame)

    @property
    def busy(self) -> bool:
        return self.loop.busy

    def obey(self, frame: Frame) -> None:
        self.loop.obey(frame)

    def inner_step(self) -> None:
        self.loop.inner_step()


@pytest.fixture
def shared() -> Iterator[Shared]:
    fds = [os.memfd_create(name) for name in ("theta", "local")]
    for fd in fds:
        os.ftruncate(fd, LAYOUT.numel * 4)
    yield [(fd, np.frombuffer(mmap.mmap(fd, LAYOUT.numel * 4), np.float32)) for fd in fds]
    for fd in fds:
        os.close(fd)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Return the traces, and make the fake trainer use them."""
    traces = Traces()
    monkeypatch.setattr(fake_trainer, "trace", lambda block, _: traces[block].astype(np.float32))
    monkeypatch.setattr(Path, "exists", lambda _: True)
    return traces


def training_with(traces: Traces) -> Callable[..., InnerStep]:
    """Return a stand-in for training, which only subtracts a block's trace from the weights."""

    def train_on(rows: np.ndarray, model: torch.nn.Module, *_: Any) -> InnerStep:
        parameters = dict(model.named_parameters())
        trace = torch.from_numpy(traces[str(rows[0, 0])].astype(np.float32))
        for entry in LAYOUT.entries:
            shard = own_share(parameters[entry.name], entry)[0]
            shard.sub_(trace[entry.offset : entry.end].view(shard.shape).to(shard.device))
        return InnerStep(1.0, 1.0)

    return train_on


def read(path: str, *, vocab: int, sequence: int) -> np.ndarray:
    return np.full((INNER.batch_sequences, sequence + 1), int(path))


def real(mode: Mode, shared: Shared, ranks: Ranks, traces: Traces) -> Held:
    config = TrainerConfig(
        MODEL,
        INNER,
        fragments=mode.fragments,
        mixing=mode.mixing,
        delayed=mode.delayed,
        eager=mode.eager,
    )
    model = build(config, ranks)
    vectors = (map_vector(fd, LAYOUT.numel) for fd, _ in shared)
    arena = RankArena(model, LAYOUT, *vectors, count=mode.fragments, eager=mode.eager)
    optimizer = make_optimizer(model, INNER)
    held, means = Held(), Means(read, training_with(traces))
    held.loop = TrainerLoop(config, model, optimizer, arena, ranks, held, means=means)  # type: ignore[arg-type]
    return held


def fake(mode: Mode, shared: Shared, _: Ranks, __: Traces) -> Held:
    """Build the fake trainer, with just those fields of a node that it reads."""
    theta, local = (vector for _, vector in shared)
    context = SimpleNamespace(
        trainer=SimpleNamespace(arena=SimpleNamespace(theta=theta, local=local)),
        layout=LAYOUT,
        fragments=fragments(LAYOUT, mode.fragments),
        manifest=SimpleNamespace(
            model=SimpleNamespace(vocab=64),
            data=SimpleNamespace(block_tokens=BLOCK_TOKENS),
            sync=SimpleNamespace(mixing=mode.mixing, eager=mode.eager),
            delayed=mode.delayed,
        ),
    )
    ours, theirs = socket.socketpair()
    held = Held()
    with ours, theirs:
        remote = fake_trainer.TrainerRemote()
        held.loop = fake_trainer.FakeTrainerLoop(context, remote, theirs, held)  # type: ignore[arg-type]
    return held


def late_node(
    make: Callable[[], Trainer], mode: Mode, seed: int, shared: Shared, traces: Traces
) -> LateNode:
    chance = random.Random(seed)
    theta, local = (vector for _, vector in shared)
    theta[:] = np.random.default_rng(seed).integers(100, 200, LAYOUT.numel) * COVERED
    cut = fragments(LAYOUT, mode.fragments)

    def start() -> tuple[Trainer, Ought]:
        ought = Ought(cut, mode.mixing, mode.delayed, traces, theta.astype(np.float64))
        return make(), ought

    def move(step: int) -> Vector:
        moved = np.zeros(LAYOUT.numel)
        for low, high in cut[step % mode.fragments].ranges:
            moved[low:high] = chance.randint(1, 5)
        return moved * COVERED

    return LateNode(
        chance,
        mode.pace,
        start,
        theta,
        local,
        move,
        BLOCK_TOKENS,
        eager=mode.eager,
        may_amend=not mode.delayed,
    )


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("trainer", [real, fake])
def test_every_report_describes_the_work_in_the_arena(
    trainer: Callable[[Mode, Shared, Ranks, Traces], Trainer],
    name: str,
    shared: Shared,
    traces: Traces,
    ranks: Ranks,
) -> None:
    mode = MODES[name]
    first = int(os.environ.get("P2PTRAIN_TEST_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("P2PTRAIN_TEST_SEEDS", SEEDS))):
        node = late_node(partial(trainer, mode, shared, ranks, traces), mode, seed, shared, traces)
        try:
            for _ in range(EVENTS):
                node.happen(ODDS)
            node.admit()
            for _ in range(2 * mode.fragments + 2):
                node.commit_calmly()
            check_accounts(node, mode)
        except AssertionError as exc:
            exc.add_note(f"seed {seed}, after {' '.join(node.log[-60:])}")
            raise


def check_accounts(node: LateNode, mode: Mode) -> None:
    assert max(node.committed.values()) == 1, "a block was committed twice"
    if mode.mixing == 0:
        assert all(max(each.values()) == 1 for each in node.contributed.values())
    if mode.delayed or (mode.fragments == 1 and not mode.pace.overlap):
        # A merge loses no work: everything contributed is committed.
        assert {int(path) for path in node.contributed[0]} == set(node.committed)
