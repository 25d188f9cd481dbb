"""A node keeps the blobs and chunks that the run needs, and removes all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.full_history import held_history
from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ChunkCorrupt
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import LedgerState, digest_state
from p2ptrain.ledger.chain.values import Commit, Participant, SnapshotRef
from p2ptrain.node.outer_state import retention
from p2ptrain.node.outer_state.kept import cached_blocks_max, kept_blobs, kept_data, roots
from p2ptrain.node.outer_state.retention import collect, keep_store_small
from p2ptrain.node.state.context import Context
from p2ptrain.run import DataIndex
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.store import Head, digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Neighbour, Rig, entry_of, opening, rig, settled
from tests.node.training.test_claiming import claimed
from tests.node.training.test_data import know_data


def update(step: int) -> Digest:
    return digest_of(b"update %d" % step)


def committed(r: Rig, step: int, snapshot: SnapshotRef | None = None) -> None:
    """Append an outer step to the ledger, with `snapshot` certified by its Commit, and store its
    update."""
    me, blocks = r.context.me, r.context.ledger.rules.blocks_per_lease
    tokens = blocks * r.context.ledger.rules.tokens_per_block
    state = r.decide(opening(r.context.ledger.snapshot, Participant(me, tokens, blocks)))
    assert state.step == step
    r.context.store.put_chunk(b"update %d" % step)
    r.decide(commit(state, step, snapshot))


def commit(state: LedgerState, step: int, snapshot: SnapshotRef | None) -> Commit:
    assert state.roster is not None
    named = None if snapshot is None else digest_state(state)
    return Commit(step, state.roster.attempt, update(step), snapshot, named)


def snapshot(context: Context, step: int) -> SnapshotRef:
    return SnapshotRef(step, context.store.put_blob("snapshot", [b"of %d" % step], {}))


async def test_newest_snapshots_and_later_updates_are_kept(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        manifest = r.run.manifest
        named = {manifest.data.index, manifest.tokenizer}
        snapshots = {step: snapshot(r.context, step) for step in (2, 4)}
        for step in range(6):
            committed(r, step, snapshots.get(step))
        chain = r.context.ledger.kept.entries
        two, four = snapshots[2].digest, snapshots[4].digest
        late = {update(4), update(5)}
        since_two = {update(2), update(3), *late}
        everything = {update(0), update(1), *since_two}
        assert set(kept_blobs(manifest, chain, 1)) == {*named, four, *late}
        assert set(kept_blobs(manifest, chain, 2)) == {*named, two, four, *since_two}
        assert set(kept_blobs(manifest, chain, 3)) == {
            *named,
            *(manifest.genesis, two, four),
            *everything,
        }
        assert set(kept_blobs(manifest, chain[:2], 1)) == {*named, manifest.genesis, update(0)}
        own = SnapshotRef(3, digest_of(b"ours, of 3"))
        assert set(kept_blobs(manifest, chain, 1, own)) == {
            *(*named, four, own.digest, update(3)),
            *late,
        }


async def test_data_blocks_needed_soonest_are_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        index, rules = know_data(r), r.context.ledger.rules
        last = rules.blocks - 1
        book = Leases({r.context.me: (7, 9)}, returned=(3,), next_block=last)
        me = r.context.me
        kept = kept_data(index, book, rules, me, 5)
        soonest = [index.train[block] for block in (7, 9, 3, last, 0)]
        assert kept == [*index.validation, *soonest]
        shared = Leases({ANN.peer: (1, 2), me: (7, 9)}, next_block=10)
        for blocks_max in (0, 2):
            own_first = kept_data(index, shared, rules, me, blocks_max)
            assert own_first == [*index.validation, index.train[7], index.train[9]]
        assert len(kept_data(index, book, rules, me, 10**9)) == len(index.validation) + rules.blocks
        assert kept_data(index, book, rules, me, None) == [*index.validation, *index.train]


async def test_seed_keeps_all_data_and_other_nodes_a_limited_amount(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        block_bytes = 4 * r.run.manifest.data.block_tokens
        config = NodeConfig(tmp_path, data_cache_bytes=3 * block_bytes)
        assert cached_blocks_max(config, r.run.manifest) == 3
        assert cached_blocks_max(replace(config, seed=True), r.run.manifest) is None


async def test_update_for_which_this_node_voted_is_kept_before_its_commit(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        index, ledger = know_data(r), r.context.ledger.core
        me, blocks = r.context.me, ledger.rules.blocks_per_lease
        tokens = blocks * ledger.rules.tokens_per_block
        state = r.decide(opening(ledger.state, Participant(me, tokens, blocks)))
        assert update(0) not in roots(r.run.manifest, ledger, index, r.context.config, None).blobs
        ledger._instance = ledger._next_instance()
        ledger._instance.acceptor.accept(0, entry_of(state, commit(state, 0, None)), b"signed")
        assert update(0) in roots(r.run.manifest, ledger, index, r.context.config, None).blobs


async def test_older_updates_are_removed_once_a_newer_snapshot_is_certified(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        store, index = r.context.store, know_data(r)
        r.configure(keep_snapshots=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_store_small, r.context)
            for step in (0, 1):
                committed(r, step)
            await grown(r, 2)
            await settled(lambda: len(r.said("collected")) == 1)
            await grown(r, 3)
            await settled(lambda: len(r.said("collected")) == 2)
            nursery.cancel_scope.cancel()
        assert [step for step in range(4) if store.has_chunk(update(step))] == [3]
        assert all(store.has_chunk(block) for block in (*index.validation, *index.train))


async def test_own_snapshot_and_later_updates_stay_until_a_newer_one_is_stored(
    tmp_path: Path,
) -> None:
    """The newest certified snapshot may be on only one disk in the run, and that disk may be
    lost."""
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        store, _ = r.context.store, know_data(r)
        r.configure(keep_snapshots=1)
        whole = store.put_blob("snapshot", [b"of 1"], {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_store_small, r.context)
            committed(r, 0)
            await certifying(r, 1, SnapshotRef(1, whole))
            await settled(lambda: len(r.said("collected")) == 1)
            for step in (2, 3, 4):
                await certifying(r, step, SnapshotRef(step, digest_of(b"elsewhere %d" % step)))
                await settled(lambda step=step: len(r.said("collected")) == step)  # type: ignore[misc]
            assert store.holds_blob(whole)
            assert [step for step in range(5) if store.has_chunk(update(step))] == [1, 2, 3, 4]
            newer = store.put_blob("snapshot", [b"of 5"], {})
            state = r.context.ledger.snapshot
            store.put_head(Head(r.context.run, state.height, state.head, 5, newer, 5))
            await certifying(r, 5, SnapshotRef(5, newer))
            await certifying(r, 6, SnapshotRef(6, digest_of(b"elsewhere 6")))
            await settled(lambda: not store.holds_blob(whole))
            nursery.cancel_scope.cancel()
        assert [step for step in range(7) if store.has_chunk(update(step))] == [5, 6]


async def test_seed_keeps_genesis_and_all_updates(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        store = r.context.store
        know_data(r)
        r.configure(keep_snapshots=1, seed=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_store_small, r.context)
            committed(r, 0)
            for step in (1, 2, 3):
                await grown(r, step)
                await settled(lambda step=step: len(r.said("collected")) == step)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
        assert [step for step in range(4) if store.has_chunk(update(step))] == [0, 1, 2, 3]
        assert store.holds_blob(r.run.manifest.genesis)
        assert retention.HISTORY_WARNING not in r.context.alerts


async def test_seed_that_lacks_an_update_warns_and_removes_old_ones(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        store = r.context.store
        know_data(r)
        r.configure(keep_snapshots=1, seed=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_store_small, r.context)
            for step in (0, 1):
                committed(r, step)
            store.chunk_path(update(0)).unlink()
            await grown(r, 2)
            await settled(lambda: len(r.said("collected")) == 1)
            await grown(r, 3)
            await settled(lambda: len(r.said("collected")) == 2)
            nursery.cancel_scope.cancel()
        assert [step for step in range(4) if store.has_chunk(update(step))] == [3]
        caution = r.context.alerts.warnings[retention.HISTORY_WARNING]
        assert (caution.code, caution.what) == (
            "HISTORY-CUT",
            "this seed lacks data that a replay of the run from its genesis needs: "
            "the update of outer step 0 is not stored here",
        )


@pytest.mark.parametrize("snapshot_bytes", [0, 10**9])
async def test_seed_drops_old_updates_before_its_disk_is_full(
    tmp_path: Path, snapshot_bytes: int
) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        committed(r, 0)
        needed = max(3 * snapshot_bytes, 256 * 2**20)
        manifest, kept = r.run.manifest, r.context.ledger.kept
        histories = [
            held_history(
                r.context.store, manifest, kept, disk_free=free, snapshot_bytes=snapshot_bytes
            )
            for free in (needed, needed - 1)
        ]
        assert (histories[0].blobs, histories[0].caution) == ((manifest.genesis, update(0)), None)
        assert histories[1].blobs == ()
        assert histories[1].caution is not None
        assert histories[1].caution.code == "HISTORY-CUT"


async def test_contributions_are_kept_for_two_outer_steps(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=TrustRules(claims=True)) as r:
        know_data(r)
        contribution = (await claimed(r)).made.claim.contribution
        kept = []
        for step in range(KEPT_STEPS + 2):
            r.set_chain(step=step)
            assert await collect(r.context) is None
            kept.append(r.context.store.holds_blob(contribution))
        assert kept == [True] * (KEPT_STEPS + 1) + [False]


async def certifying(r: Rig, step: int, named: SnapshotRef) -> None:
    r.context.outer.step = step + 1
    committed(r, step, named)
    r.context.changes.notify_all()


async def grown(r: Rig, step: int) -> None:
    """Append outer step `step`, whose Commit certifies a snapshot that is in the store."""
    await certifying(r, step, snapshot(r.context, step))


async def test_node_that_keeps_everything_does_not_collect_garbage(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.configure(keep_snapshots=None)
        with trio.fail_after(20):
            await keep_store_small(r.context)


async def test_node_with_a_damaged_blob_runs_on_without_garbage_collection(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        know_data(r)
        index = r.run.manifest.data.index
        path = r.context.store.chunk_path(index)
        path.unlink()  # Other tests' stores share the file, so it must not be overwritten.
        path.write_bytes(b"rotten")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_store_small, r.context)
            r.context.outer.step = 1
            committed(r, 0, snapshot(r.context, 0))
            r.context.changes.notify_all()
            await settled(partial(r.said, "not-collected"))
            nursery.cancel_scope.cancel()
        assert r.said("not-collected")[0]["code"] == ChunkCorrupt.default_code
        assert isinstance(r.context.blobs.data, DataIndex)


def rot(r: Rig, digest: Digest) -> bytes:
    """Damage the chunk `digest`, and return its previous contents."""
    data, path = r.context.store.get_chunk(digest), r.context.store.chunk_path(digest)
    path.unlink()  # Other tests' stores may share the file, so it must not be overwritten.
    path.write_bytes(b"rotten")
    return data


def pin_rotten(r: Rig) -> tuple[Digest, bytes]:
    """Pin a blob that nobody else has, and damage it. Return its digest and its bytes."""
    old = r.context.store.put_blob("snapshot", [b"of long ago"], {})
    r.context.store.lasting.change(add=old)
    return old, rot(r, old)


@asynccontextmanager
async def complaining(r: Rig) -> AsyncIterator[None]:
    """Collect garbage during the `with` block, which begins after the user was warned."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(keep_store_small, r.context, again_s=0.02))
        r.context.outer.step = 1
        committed(r, 0, snapshot(r.context, 0))
        r.context.changes.notify_all()
        await settled(lambda: retention.WARNING in r.context.alerts.warnings)
        yield
        await settled(lambda: retention.WARNING not in r.context.alerts.warnings)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["fetched again", "unpinned"])
async def test_damaged_pinned_blob_is_reported_until_repaired_or_unpinned(
    tmp_path: Path, how: str
) -> None:
    """No peer has the pinned snapshot at first, so it stays damaged. Without the warning, garbage
    collection would fail forever, and the user would not know why."""
    async with rig(tmp_path, steps=9, rules=policy(participants_min=1)) as r:
        know_data(r)
        store, warnings = r.context.store, r.context.alerts.warnings
        old, was = pin_rotten(r)
        async with complaining(r):
            assert [each["lost"] for each in r.said("rot-repaired")] == [[old]]
            assert r.context.blobs.scrub_asked.is_set()
            assert warnings[retention.WARNING].what.startswith("garbage collection is suspended")
            unpin = f"p2ptrain store unpin {old} --home {r.context.home.root}"
            assert unpin in warnings[retention.WARNING].do
            r.context.blobs.scrub_asked = trio.Event()
            tries = len(r.said("not-collected"))
            await settled(lambda: len(r.said("not-collected")) > tries + 1)
            assert not r.context.blobs.scrub_asked.is_set()
            if how == "unpinned":
                store.lasting.change(remove=old)
            else:
                store.put_chunk(was)
        assert len(r.said("collected")) == 1
        assert store.has_chunk(old) == (how != "unpinned")


async def test_damaged_blob_is_requested_again_even_if_scrubbing_is_off(tmp_path: Path) -> None:
    """A peer gets the blob only after the user was warned."""
    async with (
        rig(tmp_path / "a", admission="open", steps=9, rules=policy(participants_min=1)) as r,
        rig(tmp_path / "b", welcoming=True) as other,
    ):
        r.configure(scrub_bytes_per_s=None)
        Neighbour(r, other)
        know_data(r)
        old, was = pin_rotten(r)
        async with complaining(r):
            other.context.store.put_chunk(was)
        assert r.said("rot-repaired")[-1]["repaired"] == [old]
        assert r.context.store.get_chunk(old) == was
