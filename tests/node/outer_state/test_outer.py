"""θ and m follow the ledger: the node chooses the right snapshot, verifies all bytes, and changes θ
only while no reader uses it."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from p2ptrain.archive.chain_log import Origin
from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import ChunkCorrupt, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Skip, SnapshotRef
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.node.control.status import status
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.outer_state import fetch, update_blobs
from p2ptrain.node.outer_state.outer_task import Patience, keep_outer_state
from p2ptrain.node.outer_state.snapshot_choice import best_start, find_held_states
from p2ptrain.node.state.timing import Timing
from p2ptrain.observe.states import FetchingSnapshot
from p2ptrain.peers.heartbeat import SnapshotReport
from p2ptrain.state import OuterState, write_state
from p2ptrain.store import Head, IdleThrottle, digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, QUICK, Neighbour, NewRig, Rig, heartbeat, opening, rig, settled

ALONE = policy(participants_min=1, snapshot_every=2)


@asynccontextmanager
async def following(
    folder: Path,
    *,
    steps: int = 0,
    skip: bool = False,
    timing: Timing = QUICK,
    clock: Callable[[], float] = trio.current_time,
) -> AsyncIterator[Rig]:
    """Open a node that hears no other peer and follows a ledger with `steps` committed outer steps.
    With `skip`, a skipped step follows."""
    async with (
        rig(folder, rules=ALONE, steps=99, timing=timing, clock=clock) as r,
        trio.open_nursery() as nursery,
    ):
        for _ in range(steps):
            await commit(r)
        if skip:
            r.decide(roster(r), Skip(r.context.ledger.snapshot.step))
        nursery.start_soon(keep_outer_state, r.context)
        yield r
        nursery.cancel_scope.cancel()


def roster(r: Rig) -> Roster:
    return opening(r.context.ledger.snapshot, Participant(r.context.me, 32, 2))


async def sound_update(r: Rig, step: int) -> Digest:
    random = np.random.default_rng(step)
    vector = random.standard_normal(r.context.layout.numel, dtype=np.float32) * np.float32(0.1)
    form = r.context.outer_step(step).update
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(vector, payload)
    return await trio.to_thread.run_sync(form.write, r.context.store, payload)


async def commit(r: Rig, update: Digest | None = None, snapshot: SnapshotRef | None = None) -> None:
    step = r.context.ledger.snapshot.step
    update = update or await sound_update(r, step)
    anything = None if snapshot is None else digest_of(b"sealed by the rig")
    r.decide(roster(r), Commit(step, 0, update, snapshot, anything))
    r.context.changes.notify_all()


async def test_newcomer_starts_from_genesis_and_applies_all_updates(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, steps=3) as r:
        await settled(lambda: r.context.outer.step == 3)
        (caught_up,) = r.said("caught-up")
        assert caught_up["updates"] == 3
        before = r.context.outer.vectors.digest()
        await commit(r)
        await settled(lambda: r.context.outer.step == 4)
        assert r.context.outer.vectors.digest() != before


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_share_of_time_spent_computing_is_reported_per_outer_step(tmp_path: Path) -> None:
    """The time of the first change of θ is the start of the measurement, so there is no value for
    the first step. Computing time that exceeds a step's duration belongs partly to an earlier step,
    so the value is at most 1."""
    clock = Clock()
    async with following(tmp_path, clock=clock) as r:
        for step, computed_s in enumerate((3.0, 4.0, 7.5, 0.0, 11.0)):
            await settled(lambda step=step: len(r.said("committed")) == step)  # type: ignore[misc]
            clock.now_s += 10.0
            r.context.trainer.inner_s += computed_s
            await commit(r)
        await settled(lambda: len(r.said("committed")) == 5)
        told = [each["compute_utilisation"] for each in r.said("committed")]
        assert told == [None, 0.4, 0.75, 0.0, 1.0]
        assert (await status(r.context)).compute_utilisation == 1.0


async def test_skipped_step_changes_only_the_step_number(tmp_path: Path) -> None:
    async with following(tmp_path, steps=1, skip=True) as r:
        await settled(lambda: r.context.outer.step == 2)
        assert r.said("caught-up")[0]["updates"] == 1
        assert [each["skipped"] for each in r.said("committed")] == [False, True]


async def test_updates_applied_at_once_or_one_by_one_give_the_same_state(tmp_path: Path) -> None:
    digests = []
    for way in ("at once", "one by one"):
        async with following(tmp_path / way, steps=4 if way == "at once" else 0) as r:
            for step in range(4 if way == "one by one" else 0):
                await settled(lambda step=step, r=r: r.context.outer.step == step)  # type: ignore[misc]
                await commit(r)
            await settled(lambda r=r: r.context.outer.step == 4)  # type: ignore[misc]
            digests.append(r.context.outer.vectors.digest())
    assert digests[0] == digests[1]


async def test_snapshots_are_written_and_reported_to_the_ledger(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        for step in range(4):
            await settled(lambda step=step: r.context.outer.step == step)  # type: ignore[misc]
            await settled(lambda: not r.context.outer.writing)
            await commit(r)
        await settled(lambda: len(r.said("snapshot")) == 2)
        taken = [(each["step"], each["digest"]) for each in r.said("snapshot")]
        assert [step for step, _ in taken] == [2, 4]
        assert r.heard() == [SnapshotTaken(r.context.me, step, digest) for step, digest in taken]  # type: ignore[arg-type]
        head = r.context.store.head()
        assert head is not None
        assert (head.snapshot_step, head.snapshot) == taken[-1]


async def test_restarted_node_reports_its_newest_snapshot_again(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        for step in range(2):
            await settled(lambda step=step: r.context.outer.step == step)  # type: ignore[misc]
            await commit(r)
        await settled(lambda: bool(r.said("snapshot")))
        await settled(lambda: r.context.ledger.queue.waiting == 1)
        said = r.heard()
        async with trio.open_nursery() as anew:
            anew.start_soon(keep_outer_state, r.context)
            await settled(lambda: r.context.ledger.queue.waiting == 1)
            anew.cancel_scope.cancel()
        assert r.heard() == said
        r.context.ledger.core.handle(said[0], r.context.now())
        head = r.context.store.head()
        assert head is not None
        assert describe(r.context, 1, 0).snapshot == SnapshotReport(2, Digest(str(head.snapshot)))


async def test_snapshot_is_not_affected_by_updates_applied_while_it_is_written(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, steps=0) as r:
        await settled(lambda: r.context.outer.step == 0)
        await commit(r)
        await settled(lambda: r.context.outer.step == 1)
        slow = Gate(r)
        await commit(r)
        await settled(lambda: r.context.outer.step == 2)
        expected = (r.context.outer.vectors.theta.copy(), r.context.outer.vectors.momentum.copy())
        await commit(r)
        await commit(r)
        await settled(lambda: r.context.outer.step == 4)
        assert r.said("snapshot") == []
        assert [each["step"] for each in r.said("snapshot-left-out")] == [4]
        slow.open()
        await settled(lambda: len(r.said("snapshot")) == 1)
        digest = Digest(str(r.said("snapshot")[0]["digest"]))
        theta, momentum = np.split(
            np.frombuffer(r.context.store.read_blob(digest), dtype=np.float32), 2
        )
        np.testing.assert_array_equal(theta, expected[0])
        np.testing.assert_array_equal(momentum, expected[1])


class Gate:
    """Delays the writing of snapshots until `open` is called."""

    def __init__(self, r: Rig) -> None:
        self._opened = threading.Event()
        put_stream = r.context.store.put_stream

        def slow(kind: str, *arguments: object, throttle: IdleThrottle | None = None) -> Digest:
            assert (throttle is not None) == (kind == "snapshot")
            if kind == "snapshot":
                assert self._opened.wait(100.0)
            return put_stream(kind, *arguments, throttle=throttle)  # type: ignore[arg-type]

        r.context.store.put_stream = slow  # type: ignore[method-assign,assignment]

    def open(self) -> None:
        self._opened.set()


async def test_theta_is_not_changed_while_the_trainer_or_a_reduce_uses_it(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        await settled(lambda: r.context.outer.step == 0)
        r.context.trainer.theta_in_use = True
        await commit(r)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert r.context.outer.step == 0
        async with r.context.outer.lock:
            r.context.trainer.theta_in_use = False
            r.context.changes.notify_all()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert r.context.outer.step == 0
        await settled(lambda: r.context.outer.step == 1)


async def test_update_over_the_influence_bound_is_never_applied(
    tmp_path: Path,
) -> None:
    """Most voters lie here. The node ends with an error, and does not change θ."""
    async with rig(tmp_path, rules=ALONE) as r:
        context, form = r.context, r.context.outer_step(0).update
        payload = bytearray(form.payload_bytes)
        much = np.full(form.numel, 1.02 * context.manifest.influence_max, np.float32)
        form.codec.quantise(much, payload)
        await commit(r, update=context.outer_step(0).update.write(context.store, payload))
        with pytest.raises(BaseExceptionGroup) as caught:
            await keep_outer_state(context)
        words = r"entry 2 commits update .*, which nodes must not apply: .* moves a weight by"
        assert caught.group_contains(RemoteProtocolError, match=words)
        assert context.outer.step == 0
        genesis = OuterState(context.layout.numel)
        genesis.load_snapshot(context.store, context.manifest.genesis)
        assert context.outer.vectors.digest() == genesis.digest()
        genesis.close()


async def test_certified_blob_that_is_not_an_update_ends_the_node(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=ALONE) as r:
        await commit(r, update=r.context.manifest.genesis)
        with pytest.raises(BaseExceptionGroup) as caught:
            await keep_outer_state(r.context)
        assert caught.group_contains(RemoteProtocolError, match="not an update of outer step 0")


async def test_certified_blob_that_is_not_a_snapshot_is_not_used(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=ALONE)
    genesis, lie = r.context.manifest.genesis, SnapshotRef(1, r.context.manifest.data.index)
    for step in range(3):
        await commit(r, snapshot=lie if step == 1 else None)
    away = taken_away(r, genesis)
    assert best_start(r.context, await find_held_states(r.context)) == SnapshotRef(1, lie.digest)
    nursery.start_soon(keep_outer_state, r.context)
    await settled(lambda: genesis in r.context.blobs.in_flight)
    r.context.store.put_chunk(away)
    await settled(lambda: r.context.outer.step == 3)
    assert [each["digest"] for each in r.said("snapshot-useless")] == [lie.digest]
    assert r.said("caught-up")[0]["updates"] == 3


async def test_only_the_manifest_of_a_wrong_sized_snapshot_is_fetched(
    tmp_path: Path,
) -> None:
    async with (
        rig(tmp_path / "a", rules=ALONE, steps=99, admission="open") as r,
        rig(tmp_path / "b", welcoming=True) as liar,
    ):
        Neighbour(r, liar)
        huge = liar.context.store.put_blob("snapshot", [b"x" * 50_000], {})
        chunks = liar.context.store.manifest(huge).chunks
        for step in range(12):
            await commit(r, snapshot=SnapshotRef(11, huge) if step == 11 else None)
        away = [taken_away(r, update_of(r, step)) for step in range(11)]
        assert best_start(r.context, await find_held_states(r.context)) == SnapshotRef(11, huge)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_outer_state, r.context)
            await settled(lambda: bool(r.said("snapshot-useless")))
            for data in away:
                r.context.store.put_chunk(data)
            await settled(lambda: r.context.outer.step == 12)
            nursery.cancel_scope.cancel()
        assert "not a snapshot of" in str(r.said("snapshot-useless")[0]["reason"])
        assert r.context.store.has_chunk(huge)
        assert [r.context.store.has_chunk(chunk) for chunk in chunks] == [False] * len(chunks)


async def test_fetch_of_a_lost_snapshot_ends_when_a_newer_one_is_certified(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=ALONE)
    await commit(r)
    await commit(r, snapshot=SnapshotRef(1, digest_of(b"gone")))
    taken_away(r, r.context.manifest.genesis)
    nursery.start_soon(keep_outer_state, r.context)
    await settled(lambda: bool(r.context.blobs.in_flight))
    vectors = r.context.outer.vectors
    newer = await trio.to_thread.run_sync(vectors.write_snapshot, r.context.store, {"step": 2})
    await commit(r, snapshot=SnapshotRef(2, newer))
    await settled(lambda: r.context.outer.step == 3)
    assert r.said("caught-up")[0]["updates"] == 1


async def test_node_loads_a_newer_snapshot_if_the_next_update_is_lost(tmp_path: Path) -> None:
    async with following(tmp_path, steps=2, timing=replace(QUICK, lost_s=0.1)) as r:
        await settled(lambda: len(r.said("snapshot")) == 1)
        start = best_start(r.context, await find_held_states(r.context))
        assert start is not None
        assert start.step == 2
        await commit(r, digest_of(b"gone"))
        await settled(lambda: bool(r.context.blobs.in_flight))
        random = np.random.default_rng(7)
        theta = random.standard_normal(r.context.layout.numel, dtype=np.float32)
        newer = write_state(r.context.store, theta, theta, {"step": 4})
        await commit(r, digest_of(b"gone, too"))
        await commit(r, snapshot=SnapshotRef(4, newer))
        await settled(lambda: r.context.outer.step == 5)
        assert [each["step"] for each in r.said("update-lost")] == [2]
        assert [each["step"] for each in r.said("committed")] == [0, 1, 4]


@asynccontextmanager
async def restarted(folder: Path, steps: int) -> AsyncIterator[Rig]:
    """Open a restarted node whose ledger has `steps` outer steps that it must apply. Its only peer
    does not have any data."""
    async with rig(folder, rules=ALONE, steps=99) as r, trio.open_nursery() as nursery:
        r.wait_for(lost_s=0.1)
        for _ in range(steps):
            await commit(r)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            host, port = closed.getsockname()
            place = Endpoint(ANN.peer, host, port, r.context.plane.endpoint.certificate_der)
        beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
        r.context.peers.table.note_heartbeat(ANN.peer, beat, r.context.now())
        r.context.peers.detector.note_arrival(ANN.peer, r.context.now())
        assert fetch.sources(r.context)
        yield r
        nursery.cancel_scope.cancel()


def taken_away(r: Rig, digest: Digest) -> bytes:
    """Remove the manifest of a blob from the store, and return it."""
    data = r.context.store.get_chunk(digest)
    r.context.store.chunk_path(digest).unlink()
    return data


def update_of(r: Rig, step: int) -> Digest:
    return r.context.ledger.core.updates[step].update


async def test_restart_uses_older_data_if_the_newest_snapshot_is_lost(tmp_path: Path) -> None:
    """Before a power failure, only one peer had finished writing the newest certified snapshot, and
    that peer does not come back."""
    async with restarted(tmp_path, 12) as r, trio.open_nursery() as nursery:
        await commit(r, snapshot=SnapshotRef(12, digest_of(b"gone")))
        assert update_blobs.payload_bytes_about(r.context) * 12 > 8 * r.context.layout.numel
        nursery.start_soon(keep_outer_state, r.context)
        await settled(lambda: r.context.outer.step == 13)
        assert r.said("caught-up")[0]["updates"] == 13
        assert r.said("snapshot-useless") == []
        nursery.cancel_scope.cancel()


async def test_snapshots_that_no_peer_has_are_tried_in_turn_and_then_again(tmp_path: Path) -> None:
    gone = (SnapshotRef(3, digest_of(b"gone")), SnapshotRef(4, digest_of(b"gone, too")))
    async with restarted(tmp_path, 3) as r, trio.open_nursery() as nursery:
        for snapshot in gone:
            await commit(r, snapshot=snapshot)
        genesis, lost = r.context.manifest.genesis, update_of(r, 1)
        for digest in (genesis, lost, update_of(r, 3)):
            taken_away(r, digest)
        nursery.start_soon(keep_outer_state, r.context)
        await settled(lambda: len(r.said("snapshot-useless")) > 3)
        tried = [each["digest"] for each in r.said("snapshot-useless")]
        assert tried[:4] == [gone[1].digest, gone[0].digest, genesis, gone[1].digest]
        assert r.context.outer.step is None
        nursery.cancel_scope.cancel()


async def test_fetch_is_given_up_only_if_peers_send_nothing_for_long(tmp_path: Path) -> None:
    async with restarted(tmp_path, 0) as r:
        now = r.context.now()
        r.surround(clock=lambda: now)
        patience = Patience(r.context, lambda: False, bounded=True)
        for so_far in range(4):
            now += 0.6 * r.context.timing.lost_s
            r.context.outer.fetching = FetchingSnapshot(so_far, 9)
            assert not patience.is_over()
        now += 1.5 * r.context.timing.lost_s
        assert patience.is_over()
        r.context.peers.table.forget(ANN.peer)  # From now on, there is no peer to ask.
        assert not patience.is_over()


async def test_lost_update_is_requested_again_if_no_newer_snapshot_is_available(
    tmp_path: Path,
) -> None:
    async with restarted(tmp_path, 3) as r, trio.open_nursery() as nursery:
        await commit(r, snapshot=SnapshotRef(3, digest_of(b"gone")))
        away = taken_away(r, update_of(r, 1))
        nursery.start_soon(keep_outer_state, r.context)
        await settled(lambda: len(r.said("update-lost")) > 1)
        assert r.context.outer.step == 1
        r.context.store.put_chunk(away)
        await settled(lambda: r.context.outer.step == 4)
        assert [each["step"] for each in r.said("committed")] == [0, 1, 2, 3]
        nursery.cancel_scope.cancel()


def certified_elsewhere(r: Rig, step: int) -> SnapshotRef:
    """Store a snapshot of `step`, and return its reference. Its θ differs from the result of the
    updates, so that a test can tell which of the two a node has used."""
    other = np.random.default_rng(step).standard_normal(r.context.layout.numel, dtype=np.float32)
    return SnapshotRef(step, write_state(r.context.store, other, other, {"step": step}))


async def fallen_behind(r: Rig, step: int, snapshot: SnapshotRef) -> list[bytes]:
    """Keep the node at outer step 0 (its trainer uses θ) while the ledger advances to `step`, where
    `snapshot` is certified. Return the manifests of the updates, which are no longer in the
    store."""
    elsewhere = []
    await settled(lambda: r.context.outer.step == 0)
    r.context.trainer.theta_in_use = True
    await commit(r)
    for each in range(1, step):
        update = await sound_update(r, each)
        elsewhere.append(r.context.store.get_chunk(update))
        r.context.store.chunk_path(update).unlink()
        await commit(r, update)
    await commit(r, snapshot=snapshot)
    await settled(lambda: bool(r.context.ledger.snapshot.snapshot))
    r.context.trainer.theta_in_use = False
    r.context.changes.notify_all()
    return elsewhere


@pytest.mark.parametrize("away", [12, 6])
async def test_node_that_fell_behind_chooses_the_smaller_download(
    tmp_path: Path, away: int
) -> None:
    async with following(tmp_path) as r:
        by_log = (
            update_blobs.payload_bytes_about(r.context) * (away - 1) <= 8 * r.context.layout.numel
        )
        elsewhere = await fallen_behind(r, away, certified_elsewhere(r, away))
        if by_log:
            await settled(lambda: bool(r.context.blobs.in_flight))
            for data in elsewhere:
                r.context.store.put_chunk(data)
        await settled(lambda: r.context.outer.step == away + 1)
        assert by_log == (away == 6)
        assert [(each["step"], each["to"]) for each in r.said("leapt")] == (
            [] if by_log else [(1, away)]
        )
        steps = [each["step"] for each in r.said("committed")]
        assert steps == (list(range(away + 1)) if by_log else [0, away])


async def test_updates_in_the_store_are_applied_instead_of_fetching_a_snapshot(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as r:
        await settled(lambda: r.context.outer.step == 0)
        r.context.trainer.theta_in_use = True
        for _ in range(12):
            await commit(r)
        await commit(r, snapshot=certified_elsewhere(r, 12))
        r.context.trainer.theta_in_use = False
        r.context.changes.notify_all()
        await settled(lambda: r.context.outer.step == 13)
        assert (len(r.said("committed")), r.said("leapt")) == (13, [])


async def test_updates_are_applied_if_no_peer_has_the_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = replace(QUICK, lost_s=0.05)
    timing: Any = SimpleNamespace(
        **{each.name: getattr(quick, each.name) for each in fields(quick)}
    )
    async with following(tmp_path, timing=timing) as r:
        write = r.context.journal.write

        def patient_with_the_log(event: str, **fields: object) -> None:
            if event == "snapshot-useless":
                timing.lost_s = 100.0
            write(event, **fields)

        monkeypatch.setattr(r.context.journal, "write", patient_with_the_log)
        elsewhere = await fallen_behind(r, 12, SnapshotRef(12, digest_of(b"gone")))
        await settled(lambda: bool(r.said("snapshot-useless")))
        for data in elsewhere:
            r.context.store.put_chunk(data)
        await settled(lambda: r.context.outer.step == 13)
        assert [each["digest"] for each in r.said("snapshot-useless")] == [digest_of(b"gone")]
        assert (len(r.said("committed")), r.said("leapt")) == (13, [])


async def test_node_that_hears_of_a_longer_chain_waits_for_its_entries(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=ALONE)
    r.wait_for(hear_first_s=10.0)
    r.context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id, height=2), r.context.now())
    nursery.start_soon(keep_outer_state, r.context)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert r.context.outer.step is None
    await commit(r)
    await settled(lambda: r.context.outer.step == 1)


async def test_snapshot_that_stays_damaged_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, rules=ALONE) as r:

        def rotten(vectors: object, store: object, digest: Digest) -> None:
            raise ChunkCorrupt(f"chunk {digest} no longer matches its digest")

        monkeypatch.setattr(type(r.context.outer.vectors), "load_snapshot", rotten)
        with pytest.raises(ChunkCorrupt):
            await keep_outer_state(r.context)
        assert len(r.said("chunk-damaged")) == 3


async def test_node_that_is_far_behind_does_not_write_snapshots(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, steps=9) as r:
        await settled(lambda: r.context.outer.step == 9)
        await settled(lambda: bool(r.said("snapshot")))
        assert [each["step"] for each in r.said("snapshot")] == [8]


async def test_own_snapshot_of_another_chain_is_not_used(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=ALONE, steps=99) as r:
        await commit(r)
        state = r.context.ledger.snapshot
        snapshot = r.context.store.put_blob("snapshot", [b"of some chain"], {})
        ours = Head(r.context.run, state.height, state.head, 1, snapshot, 1)
        for head, trusted in (
            (ours, True),
            (replace(ours, head=digest_of(b"an entry of the branch")), False),
            (replace(ours, height=state.height + 1), False),
        ):
            r.context.store.put_head(head)
            start = best_start(r.context, await find_held_states(r.context))
            assert start == (
                SnapshotRef(1, snapshot) if trusted else SnapshotRef(0, r.context.manifest.genesis)
            )


async def test_own_snapshot_is_not_used_with_a_trusted_checkpoint(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=ALONE, steps=99) as r:
        for step in range(4):
            await commit(r, snapshot=SnapshotRef(step, digest_of(b"certified")))
        ledger = r.context.ledger.core
        base = base_at(ledger.rules, ledger.kept, ledger.state.height)
        assert base is not None
        assert base.state.step == 3
        ledger.kept.prune(base)
        snapshot = r.context.store.put_blob("snapshot", [b"of some chain"], {})
        r.context.store.put_head(Head(r.context.run, 1, digest_of(b"?"), 4, snapshot, 4))
        r.context.ledger.origin = Origin(base)
        assert best_start(r.context, await find_held_states(r.context)) == SnapshotRef(4, snapshot)
        r.context.ledger.origin = Origin(base, base.checkpoint)
        assert best_start(r.context, await find_held_states(r.context)) != SnapshotRef(4, snapshot)
