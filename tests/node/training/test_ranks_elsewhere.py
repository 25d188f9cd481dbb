"""A node whose ranks (trainer processes) are started by torchrun computes the same state as a node
that starts its ranks itself."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import trio

import p2ptrain
from p2ptrain.archive.home import Home
from p2ptrain.data.blocks import encode_block
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.reduce.reduce_task import run_reduces
from p2ptrain.node.training.trainer_processes import subprocesses
from p2ptrain.node.training.trainer_task import train
from p2ptrain.observe.states import StandingBy
from p2ptrain.run import DataIndex
from p2ptrain.testing.published import BLOCKS, MODEL, policy
from tests.node.rig import Rig, opening, rig, settled

START_S = 120.0
"""Time for a rank to load torch, on a machine that may be busy."""


@dataclass(frozen=True)
class Stepped:
    """The results of an outer step in a node. `state` is the digest of θ and m."""

    state: Digest
    update: Digest
    tokens: int
    loss: object
    ranks: object
    keeps_inner: bool


def lay_in_data(r: Rig) -> None:
    """Store blocks of random tokens. The node trains on these, and not on the run's published
    blocks."""
    random = np.random.default_rng(0)
    store = r.context.store
    blocks = tuple(
        store.put_chunk(encode_block(rows, MODEL.vocab), durable=False)
        for rows in random.integers(0, MODEL.vocab, (BLOCKS + 2, 2, MODEL.sequence + 1))
    )
    r.context.blobs.data = DataIndex(blocks[:-2], blocks[-2:])


@asynccontextmanager
async def training(home: Path, **config: object) -> AsyncIterator[Rig]:
    """Open a node that is alone in its run, with a real trainer. `config` changes its
    configuration."""
    rules = policy(participants_min=1, snapshot_every=100)
    async with rig(home, rules=rules, steps=9) as r, trio.open_nursery() as nursery:
        r.configure(**config)
        lay_in_data(r)
        nursery.start_soon(keep_outer_state, r.context)
        nursery.start_soon(run_reduces, r.context)
        nursery.start_soon(train, r.context, subprocesses(r.context))
        yield r
        nursery.cancel_scope.cancel()


async def stepped(r: Rig) -> Stepped:
    """Take one outer step with the trainer's work, and return its results."""
    context = r.context
    await settled(lambda: context.trainer.work is not None, START_S)
    work = context.trainer.work
    assert work is not None
    r.decide(
        opening(context.ledger.snapshot, Participant(context.me, work.tokens, len(work.blocks)))
    )
    context.changes.notify_all()
    await settled(lambda: context.reduce.report is not None and bool(context.reduce.report.update))
    assert context.reduce.report is not None
    update = context.reduce.report.update
    assert update is not None
    r.decide(Commit(0, 0, update))
    context.changes.notify_all()
    await settled(lambda: context.outer.step == 1)
    up, ready = r.said("trainer-up")[0], r.said("ready")[0]
    # Wait until the trainer continues from the new θ, which it reads through the same connection.
    await settled(lambda: len(r.said("inner-step")) > len(work.blocks), START_S)
    kept = context.home.inner.exists()
    digest = context.outer.vectors.digest()
    return Stepped(digest, update, work.tokens, ready["loss"], up["ranks"], kept)


async def called_at(r: Rig) -> str:
    """Return the address at which the node waits for ranks to connect."""

    def words() -> str:
        state = r.context.state.current
        return state.waits_for if isinstance(state, StandingBy) else ""

    await settled(lambda: "connect at" in words())
    found = re.fullmatch(r"for 1 of 1 rank to connect at (127\.0\.0\.1:\d+)", words())
    assert found, words()
    return found[1]


@contextmanager
def rank_of_torchrun(address: str, secret: Path) -> Iterator[None]:
    """Start the only rank, as torchrun would. End it after the `with` block."""
    where = {"PYTHONPATH": str(Path(p2ptrain.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    rank = subprocess.Popen(
        [sys.executable, "-m", "p2ptrain.trainer", "--call", address, "--secret", str(secret)],
        env={**os.environ, **where, "RANK": "0", "WORLD_SIZE": "1"},
    )
    try:
        yield
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.needs_torch
async def test_remote_ranks_reach_the_same_state_as_local_ones(tmp_path: Path) -> None:
    """The two nodes use the same key, so they have the same run and the same lease (the blocks to
    train on), and must compute the same bytes."""
    async with training(tmp_path / "local") as r:
        local = await stepped(r)
        key = r.context.home.identity.read_bytes()
    home = Home(tmp_path / "calls" / "home")
    home.identity.touch(mode=0o600)
    home.identity.write_bytes(key)
    async with training(tmp_path / "calls", ranks_host="127.0.0.1") as r:
        address, secret = await called_at(r), home.ranks_secret
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        with rank_of_torchrun(address, secret):
            calls = await stepped(r)
    # With ranks elsewhere, this node does not keep the optimizer's state: the ranks' hosts do, if
    # the user has configured them for it.
    assert (local.keeps_inner, calls.keeps_inner) == (True, False)
    assert replace(calls, keeps_inner=True) == local
