"""Real trainers that get each average one whole outer step late reach the same θ as the harness
that produced docs/results/learning.

Two trainers with torch and FSDP2 run in this process. The test sends them the orders that a node
would send, and averages their weights with the ring's arithmetic. The harness has the same model,
blocks and optimizers but its own procedure. The published comparisons rely on this equality.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.data.blocks import encode_block
from p2ptrain.ipc.frames import FragmentReady, Load, Merge, Train
from p2ptrain.ipc.trainer_config import ModelSpec, TrainerConfig
from p2ptrain.sync import SyncSpec
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.arena import RankArena, map_vector
from p2ptrain.trainer.rank.loop import TrainerLoop
from p2ptrain.trainer.rank.optimizer import make_optimizer
from p2ptrain.trainer.rank.parallelize import build
from p2ptrain.trainer.rank.ranks import Ranks
from scripts.research.learning.averaging import Contribution, average
from scripts.research.learning.corpus import Corpus
from scripts.research.learning.settings import Settings
from scripts.research.learning.swarm import Swarm
from tests.rounding import assert_rounded_alike, nudged
from tests.trainer.conftest import Driver, Script

MODEL = ModelSpec(vocab=61, layers=2, width=16, heads=2, kv_heads=1, ffn=20, sequence=8)
H, STEPS = 3, 5
RATES = 0.7, 0.9
LAYOUT = layout_of(MODEL)


def settings(*, eager: bool) -> Settings:
    return Settings(
        MODEL,
        peers=2,
        inner_steps=H,
        total_steps=H * STEPS,
        batch_sequences=4,
        lr=1e-2,
        sync=SyncSpec(1, H, eager=eager),
        precision="fp32",
        block=32,
        warmup_steps=2,
    )


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    random = np.random.default_rng(0)
    rows = (random.integers(0, 40, (87, 1)) + 3 * np.arange(MODEL.sequence + 1)) % 59
    return Corpus(rows[16:].astype(np.uint16), rows[:16].astype(np.uint16))


@contextmanager
def vector() -> Iterator[tuple[int, np.ndarray]]:
    fd = os.memfd_create("vector")
    os.ftruncate(fd, LAYOUT.numel * 4)
    yield fd, np.frombuffer(mmap.mmap(fd, LAYOUT.numel * 4), np.float32)
    os.close(fd)


def trainer(of: Settings, theta_fd: int, local_fd: int, ranks: Ranks) -> Driver:
    config = TrainerConfig(MODEL, of.inner, delayed=True, eager=of.sync.eager)
    model = build(config, ranks)
    theta, local = (map_vector(fd, LAYOUT.numel) for fd in (theta_fd, local_fd))
    arena = RankArena(model, LAYOUT, theta, local, eager=config.eager)
    optimizer = make_optimizer(model, config.inner)
    script = Script()
    loop = TrainerLoop(config, model, optimizer, arena, ranks, script)  # type: ignore[arg-type]
    return Driver(loop, script, arena, model, optimizer)


def blocks_of(corpus: Corpus, of: Settings, peer: int, step: int, folder: Path) -> tuple[str, ...]:
    """Return the blocks on which this peer trains in this outer step in the harness."""
    paths = []
    for number in range(H):
        block = (step * of.peers + peer) * H + number
        rows = corpus.rows(of.seed, block * of.peer_sequences, of.peer_sequences)
        paths.append(folder / f"block-{block}")
        paths[-1].write_bytes(encode_block(rows, MODEL.vocab))
    return tuple(map(str, paths))


def trained(of: Settings, corpus: Corpus, ranks: Ranks, folder: Path) -> np.ndarray:
    """Return θ after STEPS outer steps of real trainers."""
    pull = (1 / of.peers, *RATES)
    with ExitStack() as stack:
        theta_fd, theta = stack.enter_context(vector())
        arenas = [stack.enter_context(vector()) for _ in range(of.peers)]
        theta[:], momentum = genesis(MODEL, of.seed), np.zeros_like(theta)
        drivers = [trainer(of, theta_fd, fd, ranks) for fd, _ in arenas]

        def blocks(step: int) -> list[tuple[str, ...]]:
            return [blocks_of(corpus, of, peer, step, folder) for peer in range(of.peers)]

        for driver, first in zip(drivers, blocks(0), strict=True):
            driver.send(Load(0), Train(0, first, 0, False, *pull))
        for step in range(STEPS):
            update = average([Contribution(1, theta, local) for _, local in arenas], of.kernels)
            for driver, ahead in zip(drivers, blocks(step + 1), strict=True):
                driver.send(Train(step, ahead, (step + 1) * H, True, *pull))
            of.kernels.outer_step(theta, momentum, update, *RATES)
            for driver in drivers:
                (ready,) = driver.send(Merge(step + 1), Train(step + 1, (), 0, False, *pull))
                assert isinstance(ready, FragmentReady)
                assert ready.blocks == H
        return theta.copy()


def simulated(
    of: Settings, corpus: Corpus, random: np.random.Generator | None = None
) -> np.ndarray:
    """Return the final θ. With `random`, every inner step is rounded differently."""
    swarm = Swarm.begin(of, corpus)
    for _ in range(H * STEPS):
        if random is not None:
            for peer in swarm.peers:
                peer.replica.weights[:] = nudged(peer.replica.weights, random)
        swarm.advance()
    swarm.drain()
    return swarm.theta


def test_real_trainers_match_the_harness_and_repeat_bit_for_bit(
    corpus: Corpus, ranks: Ranks, tmp_path: Path
) -> None:
    found = {}
    for eager in (False, True):
        of = settings(eager=eager)
        found[eager] = trained(of, corpus, ranks, tmp_path)
        assert found[eager].tobytes() == trained(of, corpus, ranks, tmp_path).tobytes()
        rounded = [simulated(of, corpus, np.random.default_rng(seed)) for seed in range(3)]
        assert_rounded_alike(found[eager], simulated(of, corpus), *rounded)
    assert np.abs(found[True] - found[False]).max() > 1e-2
