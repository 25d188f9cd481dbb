"""A node whose θ and m differ from the certified state stops using them, reports this, and fetches
the certified state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain.errors import MachineUnfit
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant, SnapshotRef
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.outer_state.snapshot_choice import best_start, find_held_states
from p2ptrain.node.outer_state.state_mismatch import TIMES_MAX, WARNING
from p2ptrain.state import OuterState, snapshot_meta
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.published import policy
from tests.node.rig import Neighbour, Rig, opening, rig, settled

ALONE = policy(participants_min=1, snapshot_every=2)


class Truth:
    """The correct θ and m, as other members compute them. Their snapshots are in the store of the
    neighbour `other`."""

    def __init__(self, other: Rig) -> None:
        self.context = other.context
        self.state = OuterState(other.context.layout.numel)
        self.state.load_snapshot(other.context.store, other.context.manifest.genesis)

    def apply(self, payload: bytes) -> None:
        outer = self.context.manifest.outer
        self.state.apply(payload, outer.lr, outer.momentum, self.context.outer_step(0).codec)

    def snapshot(self, run: str, step: int) -> SnapshotRef:
        meta = snapshot_meta(run, step, self.context.layout.digest)  # type: ignore[arg-type]
        return SnapshotRef(step, self.state.write_snapshot(self.context.store, meta))


@asynccontextmanager
async def doubtful(folder: Path) -> AsyncIterator[tuple[Rig, Truth]]:
    """Open a node that follows its ledger, and a neighbour from which it can fetch the correct θ
    and m."""
    async with (
        rig(folder / "a", admission="open", rules=ALONE, steps=99) as r,
        rig(folder / "b", rules=ALONE, steps=99, welcoming=True) as other,
        trio.open_nursery() as nursery,
    ):
        Neighbour(r, other)
        nursery.start_soon(keep_outer_state, r.context)
        await settled(lambda: r.context.outer.step == 0)
        yield r, Truth(other)
        nursery.cancel_scope.cancel()


async def commit(r: Rig, truth: Truth, snapshot: SnapshotRef | None = None) -> None:
    step = r.context.ledger.snapshot.step
    vector = np.random.default_rng(step).standard_normal(r.context.layout.numel, dtype=np.float32)
    vector *= np.float32(0.1)  # This scales the vector so that it is within the bound on influence.
    form = r.context.outer_step(step).update
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(vector, payload)
    update = await trio.to_thread.run_sync(form.write, r.context.store, payload)
    sealed = None if snapshot is None else digest_of(b"sealed by the rig")
    roster = opening(r.context.ledger.snapshot, Participant(r.context.me, 32, 2))
    r.decide(roster, Commit(step, 0, update, snapshot, sealed))
    truth.apply(bytes(payload))
    r.context.changes.notify_all()


async def snapshot_taken(r: Rig, step: int) -> Digest:
    """Wait until the node has written its own snapshot of `step`, and pass its report to the
    ledger, since the ledger's task is not running. Return the snapshot's digest."""
    await settled(lambda: bool([each for each in r.said("snapshot") if each["step"] == step]))
    for event in r.heard():
        r.context.ledger.core.handle(event, r.context.now())
    return r.context.ledger.core.reports.own_snapshots[step]


def flip_a_bit(r: Rig) -> None:
    """Change a value of θ, as a memory fault can."""
    r.context.outer.vectors.theta[7] += 1


async def test_wrong_state_is_detected_and_only_wrong_chunks_are_fetched(
    tmp_path: Path,
) -> None:
    async with doubtful(tmp_path) as (r, truth):
        await commit(r, truth)
        await settled(lambda: r.context.outer.step == 1)
        flip_a_bit(r)
        await commit(r, truth)
        own = await snapshot_taken(r, 2)
        right = truth.snapshot(r.run.id, 2)
        assert own != right.digest
        r.context.trainer.work = LocalWork(2, (0,), 16)
        await commit(r, truth, right)
        await settled(lambda: bool(r.said("state-put-right")))
        assert r.context.outer.step == 3
        assert r.context.outer.vectors.digest() == truth.state.digest()
        assert [(e["own"], e["certified"]) for e in r.said("state-differs")] == [
            (own, right.digest)
        ]
        (mended,) = r.said("state-put-right")
        assert mended["chunks"] == 1
        assert int(str(mended["of"])) > 3
        (fetched,) = r.said("snapshot-fetched")
        manifest = r.context.store.manifest(right.digest)
        assert fetched["bytes_by_peer"] == {
            truth.context.me: manifest.chunk_bytes + len(manifest.to_wire())
        }
        assert "they have been corrected" in r.context.alerts.warnings[WARNING].what
        assert r.context.trainer.work is None
        assert r.context.outer.replaced == 1


async def test_wrong_state_is_not_used_until_it_is_corrected(tmp_path: Path) -> None:
    async with doubtful(tmp_path) as (r, truth):
        flip_a_bit(r)
        for _ in range(2):
            await commit(r, truth)
        own = await snapshot_taken(r, 2)
        right = truth.snapshot(r.run.id, 2)
        manifest = truth.context.store.chunk_path(right.digest)
        away = manifest.rename(manifest.with_name("away"))
        await commit(r, truth, right)
        await settled(lambda: bool(r.said("fetch-delayed")))
        assert [each["certified"] for each in r.said("state-differs")] == [right.digest]
        assert (r.context.outer.step, r.context.at_head()) == (None, False)
        assert "ARE WRONG" in r.context.alerts.warnings[WARNING].what
        head = r.context.store.head()
        assert head is not None
        assert head.snapshot is None
        assert r.context.store.holds_blob(own)
        away.rename(manifest)
        await settled(lambda: r.context.outer.step == 3, deadline_s=30)
        assert r.context.outer.vectors.digest() == truth.state.digest()


async def test_restart_ignores_a_snapshot_unlike_the_certified_one(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=ALONE, steps=99) as r, trio.open_nursery() as nursery:
        truth = Truth(r)
        nursery.start_soon(keep_outer_state, r.context)
        await settled(lambda: r.context.outer.step == 0)
        for _ in range(2):
            await commit(r, truth)
        own = await snapshot_taken(r, 2)
        nursery.cancel_scope.cancel()
        assert best_start(r.context, await find_held_states(r.context)) == SnapshotRef(2, own)
        await commit(r, truth, SnapshotRef(2, digest_of(b"certified")))
        assert best_start(
            r.context, await find_held_states(r.context), (digest_of(b"certified"),)
        ) == SnapshotRef(0, r.context.manifest.genesis)


async def test_node_ends_after_its_state_was_wrong_too_often(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with doubtful(tmp_path) as (r, truth):
            await commit(r, truth)
            r.context.outer.replaced = TIMES_MAX
            flip_a_bit(r)
            await commit(r, truth)
            await snapshot_taken(r, 2)
            await commit(r, truth, truth.snapshot(r.run.id, 2))
            await trio.sleep_forever()
    assert caught.group_contains(MachineUnfit, match="4 times", depth=None)
