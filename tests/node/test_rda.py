"""A run whose directions and lengths are averaged apart, in a node's own tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain.ledger.values import Commit, Participant
from p2ptrain.node import outer as module
from p2ptrain.node import updates
from p2ptrain.node.exchange import exchange
from p2ptrain.node.orders import Work
from p2ptrain.node.outer import keep_outer_state
from p2ptrain.run.manifest import CodecSpec
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.published import manifest_of, policy
from tests.node.rig import ANN, opening, rig, settled


@pytest.mark.parametrize("fragments", [1, 2])
async def test_one_peer_alone_goes_where_plain_means_would_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fragments: int
) -> None:
    monkeypatch.setattr(module, "HEAR_FIRST_S", 0.01)
    sync = SyncSpec(fragments=fragments, merge="rda")
    settings = {"sync": sync, "inner_steps": 2, "rules": policy(participants_min=1)}
    async with rig(tmp_path, **settings) as r, trio.open_nursery() as nursery:
        parts = r.parts
        assert parts.arena is not None
        nursery.start_soon(keep_outer_state, parts)
        nursery.start_soon(exchange, parts)
        await settled(lambda: parts.outer.step == 0)
        before = parts.arena.theta.copy()
        work = np.random.default_rng(0).standard_normal(before.size, np.float32) / 20
        parts.arena.local[:] = before - work
        blocks = parts.ledger.state.leases[parts.me]
        parts.standing.work = Work(0, blocks, 16 * len(blocks))
        r.decide(opening(parts.ledger.state, Participant(parts.me, 16 * len(blocks), len(blocks))))
        parts.changes.ring()
        await settled(lambda: parts.standing.reduce is not None)
        assert parts.standing.reduce is not None
        update = parts.standing.reduce.update
        assert update is not None
        await updates.inspect(parts, update, 0)
        r.decide(Commit(0, 0, update))
        parts.changes.ring()
        await settled(lambda: parts.outer.step == 1)
        moved, rates = before - parts.arena.theta, parts.manifest.outer
        expected = np.zeros_like(moved)
        for start, stop in parts.fragment(0).ranges:
            expected[start:stop] = rates.lr * (1 + rates.momentum) * work[start:stop]
        np.testing.assert_allclose(moved, expected, atol=np.abs(expected).max() / 100)
        (done,) = r.said("exchange-done")
        assert done["cosine"] == pytest.approx(1, abs=1e-3)
        assert done["norm"] == pytest.approx(done["mean_norm"], rel=1e-2)
        assert 0 < done["quantisation_error"] < 0.02
        nursery.cancel_scope.cancel()


def test_directions_owe_no_feedback() -> None:
    manifest = manifest_of(ANN.peer, sync=SyncSpec(merge="rda"))
    with pytest.raises(ValueError, match=r"sync\.merge"):
        replace(manifest, codec=CodecSpec("int8", 64, feedback=True))
