"""Error feedback in a run of several fragments: what rounding loses is owed to its own fragment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from p2ptrain.ids import Digest
from p2ptrain.ledger.values import Commit, Participant, Skip
from p2ptrain.node import outer as module
from p2ptrain.node.exchange import exchange
from p2ptrain.node.orders import Work
from p2ptrain.node.outer import keep_outer_state
from p2ptrain.node.updates import codec_of
from p2ptrain.run.manifest import CodecSpec
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.published import policy
from tests.node.rig import Rig, opening, rig, settled

BLOCKS, TOKENS = 2, 32
"""Of an outer step."""


async def offer(r: Rig, step: int) -> tuple[NDArray[np.float32], Digest]:
    """Have a pseudo-gradient averaged in outer step `step`. Returns it, and the update."""
    parts = r.parts
    assert parts.arena is not None
    await settled(lambda: parts.outer.step == step)
    work = np.random.default_rng(step).standard_normal(parts.layout.numel, np.float32)
    parts.arena.local[:] = parts.arena.theta - work * np.float32(0.01)
    offered = np.empty(parts.fragment(step).numel, np.float32)
    parts.fragment(step).gather(parts.arena.theta - parts.arena.local, offered)
    lease = parts.ledger.state.leases[parts.me]
    parts.standing.work = Work(step, lease[:BLOCKS], TOKENS)
    r.decide(opening(parts.ledger.state, Participant(parts.me, TOKENS, BLOCKS)))
    parts.changes.ring()
    await settled(lambda: parts.standing.reduce is not None and parts.standing.reduce.step == step)
    assert parts.standing.reduce is not None
    update = parts.standing.reduce.update
    assert update is not None
    return offered, update


def owed(r: Rig) -> list[NDArray[np.float32]]:
    """By fragment."""
    return [residual.owed.copy() for residual in r.parts.outer.residuals]


async def test_each_fragment_is_owed_what_its_own_updates_have_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAR_FIRST_S", 0.01)
    settings = {
        "rules": policy(participants_min=1, snapshot_every=100),
        "codec": CodecSpec("int4", 32, feedback=True),
        "sync": SyncSpec(fragments=2, overlap_steps=1),
        "inner_steps": 2 * BLOCKS,
        "steps": 99,
    }
    async with rig(tmp_path, **settings) as r, trio.open_nursery() as nursery:
        nursery.start_soon(keep_outer_state, r.parts)
        nursery.start_soon(exchange, r.parts)
        lacking = [np.zeros(each.numel) for each in r.parts.fragments]
        """By fragment: all that was offered and committed, less what the updates say."""
        for step in range(6):
            before, number = owed(r), step % 2
            offered, update = await offer(r, step)
            if step == 2:  # the attempt comes to nothing, and so does what it lost
                r.decide(Skip(step))
                r.parts.changes.ring()
                await settled(lambda done=step + 1: r.parts.outer.step == done)
                assert [each.tobytes() for each in owed(r)] == [each.tobytes() for each in before]
                continue
            told = np.empty(len(offered), np.float32)
            codec_of(r.parts, step).dequantise(r.parts.store.read_blob(update), told)
            lacking[number] += offered.astype(np.float64) - told
            r.decide(Commit(step, 0, update))
            r.parts.changes.ring()
            await settled(lambda done=step + 1: r.parts.outer.step == done)
            assert np.abs(owed(r)[number]).max() > 1e-4
            np.testing.assert_allclose(owed(r)[number], lacking[number], atol=1e-6)
            assert owed(r)[1 - number].tobytes() == before[1 - number].tobytes()
        nursery.cancel_scope.cancel()
