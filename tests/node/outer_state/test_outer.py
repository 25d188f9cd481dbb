"""θ and m at the ledger's head: from the right snapshot, with checked bytes, and without hurry."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from p2ptrain.archive.chain_log import Origin
from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import ChunkCorrupt, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant, Skip, SnapshotRef
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.node.control.status import status
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.outer_state import fetch, update_blobs
from p2ptrain.node.outer_state import outer_task as module
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.outer_state.snapshot_choice import best_start, look
from p2ptrain.node.outer_state.start import Start
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.states import FetchingSnapshot
from p2ptrain.peers.heartbeat import SnapshotReport
from p2ptrain.state import OuterState, write_state
from p2ptrain.store import Head, Leisure, digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Neighbour, NewRig, Rig, heartbeat, opening, rig, settled

ALONE = policy(participants_min=1, snapshot_every=2)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other peer is heard."""
    monkeypatch.setattr(module, "HEAR_FIRST_S", 0.01)


@asynccontextmanager
async def following(folder: Path, *, steps: int = 0, skip: bool = False) -> AsyncIterator[Rig]:
    """A node that follows a ledger with `steps` outer steps behind it."""
    async with rig(folder, rules=ALONE, steps=99) as r, trio.open_nursery() as nursery:
        for _ in range(steps):
            await commit(r)
        if skip:
            r.decide(roster(r), Skip(r.parts.ledger.state.step))
        nursery.start_soon(keep_outer_state, r.parts)
        yield r
        nursery.cancel_scope.cancel()


def roster(r: Rig) -> object:
    return opening(r.parts.ledger.state, Participant(r.parts.me, 32, 2))


async def sound_update(r: Rig, step: int) -> Digest:
    random = np.random.default_rng(step)
    vector = random.standard_normal(r.parts.layout.numel, dtype=np.float32) * np.float32(0.1)
    form = r.parts.outer_step(step).update
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(vector, payload)
    return await trio.to_thread.run_sync(form.write, r.parts.store, payload)


async def commit(r: Rig, update: Digest | None = None, snapshot: SnapshotRef | None = None) -> None:
    step = r.parts.ledger.state.step
    update = update or await sound_update(r, step)
    anything = None if snapshot is None else digest_of(b"sealed by the rig")
    r.decide(roster(r), Commit(step, 0, update, snapshot, anything))  # type: ignore[arg-type]
    r.parts.changes.ring()


async def test_newcomer_starts_from_genesis_and_replays_the_commits(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, steps=3) as r:
        await settled(lambda: r.parts.outer.step == 3)
        (caught_up,) = r.said("caught-up")
        assert caught_up["updates"] == 3
        before = r.parts.outer.vectors.digest()
        await commit(r)
        await settled(lambda: r.parts.outer.step == 4)
        assert r.parts.outer.vectors.digest() != before


@dataclass
class Clock:
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s


async def test_share_of_computing_time_of_an_outer_step_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has no beginning. A step that computed for more than its whole time includes
    earlier computing.
    """
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    async with following(tmp_path) as r:
        for step, computed_s in enumerate((3.0, 4.0, 7.5, 0.0, 11.0)):
            await settled(lambda step=step: len(r.said("committed")) == step)  # type: ignore[misc]
            clock.now_s += 10.0
            r.parts.standing.inner_s = computed_s
            await commit(r)
        await settled(lambda: len(r.said("committed")) == 5)
        told = [each["compute_utilisation"] for each in r.said("committed")]
        assert told == [None, 0.4, 0.75, 0.0, 1.0]
        assert (await status(r.parts)).compute_utilisation == 1.0
        assert r.parts.standing.inner_s == 0.0


async def test_skipped_step_changes_only_the_count(tmp_path: Path) -> None:
    async with following(tmp_path, steps=1, skip=True) as r:
        await settled(lambda: r.parts.outer.step == 2)
        assert r.said("caught-up")[0]["updates"] == 1
        assert [each["skipped"] for each in r.said("committed")] == [False, True]


async def test_equal_chains_give_equal_states_by_any_way(tmp_path: Path) -> None:
    digests = []
    for way in ("at once", "one by one"):
        async with following(tmp_path / way, steps=4 if way == "at once" else 0) as r:
            for step in range(4 if way == "one by one" else 0):
                await settled(lambda step=step, r=r: r.parts.outer.step == step)  # type: ignore[misc]
                await commit(r)
            await settled(lambda r=r: r.parts.outer.step == 4)  # type: ignore[misc]
            digests.append(r.parts.outer.vectors.digest())
    assert digests[0] == digests[1]


async def test_snapshots_are_taken_in_passing_and_reported(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        for step in range(4):
            await settled(lambda step=step: r.parts.outer.step == step)  # type: ignore[misc]
            await settled(lambda: not r.parts.outer.writing)
            await commit(r)
        await settled(lambda: len(r.said("snapshot")) == 2)
        taken = [(each["step"], each["digest"]) for each in r.said("snapshot")]
        assert [step for step, _ in taken] == [2, 4]
        assert r.heard() == [SnapshotTaken(r.parts.me, step, digest) for step, digest in taken]  # type: ignore[arg-type]
        head = r.parts.store.head()
        assert head is not None
        assert (head.snapshot_step, head.snapshot) == taken[-1]


async def test_restarted_node_reports_its_snapshots_again(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        for step in range(2):
            await settled(lambda step=step: r.parts.outer.step == step)  # type: ignore[misc]
            await commit(r)
        await settled(lambda: bool(r.said("snapshot")))
        await settled(lambda: r.events.statistics().current_buffer_used == 1)
        said = r.heard()
        async with trio.open_nursery() as anew:
            anew.start_soon(keep_outer_state, r.parts)
            await settled(lambda: r.events.statistics().current_buffer_used == 1)
            anew.cancel_scope.cancel()
        assert r.heard() == said
        r.parts.ledger.handle(said[0], r.parts.now())
        head = r.parts.store.head()
        assert head is not None
        assert describe(r.parts, 1, 0).snapshot == SnapshotReport(2, Digest(str(head.snapshot)))


async def test_snapshot_belongs_to_its_step_although_theta_moves_on(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        await settled(lambda: r.parts.outer.step == 0)
        await commit(r)
        await settled(lambda: r.parts.outer.step == 1)
        slow = Gate(r)
        await commit(r)
        await settled(lambda: r.parts.outer.step == 2)
        expected = (r.parts.outer.vectors.theta.copy(), r.parts.outer.vectors.momentum.copy())
        await commit(r)
        await commit(r)
        await settled(lambda: r.parts.outer.step == 4)
        assert r.said("snapshot") == []
        assert [each["step"] for each in r.said("snapshot-left-out")] == [4]
        slow.open()
        await settled(lambda: len(r.said("snapshot")) == 1)
        digest = Digest(str(r.said("snapshot")[0]["digest"]))
        theta, momentum = np.split(
            np.frombuffer(r.parts.store.read_blob(digest), dtype=np.float32), 2
        )
        np.testing.assert_array_equal(theta, expected[0])
        np.testing.assert_array_equal(momentum, expected[1])


class Gate:
    """Delays the writing of snapshots until it is opened."""

    def __init__(self, r: Rig) -> None:
        self._opened = threading.Event()
        put_stream = r.parts.store.put_stream

        def slow(kind: str, *arguments: object, leisure: Leisure | None = None) -> Digest:
            assert (leisure is not None) == (kind == "snapshot")
            if kind == "snapshot":
                assert self._opened.wait(100.0)
            return put_stream(kind, *arguments, leisure=leisure)  # type: ignore[arg-type]

        r.parts.store.put_stream = slow  # type: ignore[method-assign,assignment]

    def open(self) -> None:
        self._opened.set()


async def test_theta_waits_for_its_readers_trainer_and_ring(tmp_path: Path) -> None:
    async with following(tmp_path, steps=0) as r:
        await settled(lambda: r.parts.outer.step == 0)
        r.parts.standing.theta_in_use = True
        await commit(r)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert r.parts.outer.step == 0
        async with r.parts.outer.lock:
            r.parts.standing.theta_in_use = False
            r.parts.changes.ring()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert r.parts.outer.step == 0
        await settled(lambda: r.parts.outer.step == 1)


async def test_certified_update_over_the_bound_is_not_applied(
    tmp_path: Path,
) -> None:
    """Most voters lie. The node ends with a message, and θ is unchanged."""
    async with rig(tmp_path, rules=ALONE) as r:
        parts, form = r.parts, r.parts.outer_step(0).update
        payload = bytearray(form.payload_bytes)
        much = np.full(form.numel, 1.02 * parts.manifest.influence_max, np.float32)
        form.codec.quantise(much, payload)
        await commit(r, update=parts.outer_step(0).update.write(parts.store, payload))
        with pytest.raises(BaseExceptionGroup) as caught:
            await keep_outer_state(parts)
        words = r"entry 2 commits update .*, which nodes must not apply: .* moves a weight by"
        assert caught.group_contains(RemoteProtocolError, match=words)
        assert parts.outer.step == 0
        genesis = OuterState(parts.layout.numel)
        genesis.load_snapshot(parts.store, parts.manifest.genesis)
        assert parts.outer.vectors.digest() == genesis.digest()
        genesis.close()


async def test_certified_blob_that_is_no_update_ends_the_node(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=ALONE) as r:
        await commit(r, update=r.parts.manifest.genesis)
        with pytest.raises(BaseExceptionGroup) as caught:
            await keep_outer_state(r.parts)
        assert caught.group_contains(RemoteProtocolError, match="not an update of outer step 0")


async def test_certified_blob_that_is_no_snapshot_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    r = await new_rig(tmp_path, rules=ALONE)
    genesis, lie = r.parts.manifest.genesis, SnapshotRef(1, r.parts.manifest.data.index)
    for step in range(3):
        await commit(r, snapshot=lie if step == 1 else None)
    away = taken_away(r, genesis)
    assert best_start(r.parts, await look(r.parts)) == Start(1, lie.digest)
    nursery.start_soon(keep_outer_state, r.parts)
    await settled(lambda: genesis in r.parts.fetching)
    r.parts.store.put_chunk(away)
    await settled(lambda: r.parts.outer.step == 3)
    assert [each["digest"] for each in r.said("snapshot-useless")] == [lie.digest]
    assert r.said("caught-up")[0]["updates"] == 3


async def test_only_the_manifest_of_a_wrong_sized_snapshot_is_fetched(
    tmp_path: Path,
) -> None:
    async with (
        rig(tmp_path / "a", rules=ALONE, steps=99, admission="open") as r,
        rig(tmp_path / "b") as liar,
    ):
        liar.parts.listener._gate._allowed = lambda peer: True
        Neighbour(r, liar)
        huge = liar.parts.store.put_blob("snapshot", [b"x" * 50_000], {})
        chunks = liar.parts.store.manifest(huge).chunks
        for step in range(12):
            await commit(r, snapshot=SnapshotRef(11, huge) if step == 11 else None)
        away = [taken_away(r, update_of(r, step)) for step in range(11)]
        assert best_start(r.parts, await look(r.parts)) == Start(11, huge)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_outer_state, r.parts)
            await settled(lambda: bool(r.said("snapshot-useless")))
            for data in away:
                r.parts.store.put_chunk(data)
            await settled(lambda: r.parts.outer.step == 12)
            nursery.cancel_scope.cancel()
        assert "not a snapshot of" in str(r.said("snapshot-useless")[0]["reason"])
        assert r.parts.store.has_chunk(huge)
        assert [r.parts.store.has_chunk(chunk) for chunk in chunks] == [False] * len(chunks)


async def test_snapshot_that_nobody_has_is_replaced_by_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.05)
    r = await new_rig(tmp_path, rules=ALONE)
    await commit(r)
    await commit(r, snapshot=SnapshotRef(1, digest_of(b"gone")))
    taken_away(r, r.parts.manifest.genesis)
    nursery.start_soon(keep_outer_state, r.parts)
    await settled(lambda: bool(r.parts.fetching))
    vectors = r.parts.outer.vectors
    newer = await trio.to_thread.run_sync(vectors.write_snapshot, r.parts.store, {"step": 2})
    await commit(r, snapshot=SnapshotRef(2, newer))
    await settled(lambda: r.parts.outer.step == 3)
    assert r.said("caught-up")[0]["updates"] == 1


async def test_node_away_for_too_long_jumps_to_a_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.05)
    monkeypatch.setattr(module, "LOST_S", 0.1)
    async with following(tmp_path, steps=2) as r:
        await settled(lambda: len(r.said("snapshot")) == 1)
        assert best_start(r.parts, await look(r.parts)).step == 2
        await commit(r, digest_of(b"gone"))
        await settled(lambda: bool(r.parts.fetching))
        random = np.random.default_rng(7)
        theta = random.standard_normal(r.parts.layout.numel, dtype=np.float32)
        newer = write_state(r.parts.store, theta, theta, {"step": 4})
        await commit(r, digest_of(b"gone, too"))
        await commit(r, snapshot=SnapshotRef(4, newer))
        await settled(lambda: r.parts.outer.step == 5)
        assert [each["step"] for each in r.said("update-lost")] == [2]
        assert [each["step"] for each in r.said("committed")] == [0, 1, 4]


@asynccontextmanager
async def restarted(
    folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    """A node about to start beside a peer that has nothing, with `steps` outer steps to follow."""
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    monkeypatch.setattr(module, "LOST_S", 0.1)
    async with rig(folder, rules=ALONE, steps=99) as r, trio.open_nursery() as nursery:
        for _ in range(steps):
            await commit(r)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            place = Endpoint(ANN.peer, *closed.getsockname(), r.parts.endpoint.certificate_der)
        beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
        r.parts.peers.note_heartbeat(ANN.peer, beat, r.parts.now())
        r.parts.detector.note_arrival(ANN.peer, r.parts.now())
        assert fetch.sources(r.parts)
        yield r
        nursery.cancel_scope.cancel()


def taken_away(r: Rig, digest: Digest) -> bytes:
    """The manifest of a blob that is no longer here."""
    data = r.parts.store.get_chunk(digest)
    r.parts.store.chunk_path(digest).unlink()
    return data


def update_of(r: Rig, step: int) -> Digest:
    return r.parts.ledger.updates[step].update


async def test_restart_uses_what_it_has_before_a_snapshot_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one peer had finished the newest certified snapshot when the power failed, and it stays
    away.
    """
    async with restarted(tmp_path, 12, monkeypatch) as r, trio.open_nursery() as nursery:
        await commit(r, snapshot=SnapshotRef(12, digest_of(b"gone")))
        assert update_blobs.payload_bytes_about(r.parts) * 12 > 8 * r.parts.layout.numel
        nursery.start_soon(keep_outer_state, r.parts)
        await settled(lambda: r.parts.outer.step == 13)
        assert r.said("caught-up")[0]["updates"] == 13
        assert r.said("snapshot-useless") == []
        nursery.cancel_scope.cancel()


async def test_unavailable_start_gives_way_to_the_next_best_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (SnapshotRef(3, digest_of(b"gone")), SnapshotRef(4, digest_of(b"gone, too")))
    async with restarted(tmp_path, 3, monkeypatch) as r, trio.open_nursery() as nursery:
        for snapshot in gone:
            await commit(r, snapshot=snapshot)
        genesis, lost = r.parts.manifest.genesis, update_of(r, 1)
        for digest in (genesis, lost, update_of(r, 3)):
            taken_away(r, digest)
        nursery.start_soon(keep_outer_state, r.parts)
        await settled(lambda: len(r.said("snapshot-useless")) > 3)
        tried = [each["digest"] for each in r.said("snapshot-useless")]
        assert tried[:4] == [gone[1].digest, gone[0].digest, genesis, gone[1].digest]
        assert r.parts.outer.step is None
        nursery.cancel_scope.cancel()


async def test_advancing_transfer_is_not_given_up_for_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with restarted(tmp_path, 0, monkeypatch) as r:
        now = r.parts.now()
        monkeypatch.setattr(Parts, "now", lambda parts: now)
        patience = module._Patience(r.parts, lambda: False, bounded=True)
        for so_far in range(4):
            now += 0.6 * module.LOST_S
            r.parts.standing.fetching = FetchingSnapshot(so_far, 9)
            assert not patience.is_over()
        now += 1.5 * module.LOST_S
        assert patience.is_over()
        r.parts.peers.forget(ANN.peer)  # Nobody can be asked.
        assert not patience.is_over()


async def test_missing_update_is_requested_again_without_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with restarted(tmp_path, 3, monkeypatch) as r, trio.open_nursery() as nursery:
        await commit(r, snapshot=SnapshotRef(3, digest_of(b"gone")))
        away = taken_away(r, update_of(r, 1))
        nursery.start_soon(keep_outer_state, r.parts)
        await settled(lambda: len(r.said("update-lost")) > 1)
        assert r.parts.outer.step == 1
        r.parts.store.put_chunk(away)
        await settled(lambda: r.parts.outer.step == 4)
        assert [each["step"] for each in r.said("committed")] == [0, 1, 2, 3]
        nursery.cancel_scope.cancel()


def certified_elsewhere(r: Rig, step: int) -> SnapshotRef:
    """A snapshot that differs from the result of the log, so that the test can tell which of the
    two was used.
    """
    other = np.random.default_rng(step).standard_normal(r.parts.layout.numel, dtype=np.float32)
    return SnapshotRef(step, write_state(r.parts.store, other, other, {"step": step}))


async def fallen_behind(r: Rig, step: int, snapshot: SnapshotRef) -> list[bytes]:
    """Its trainer has held it at outer step 0 while the others reached `step`. Returns the
    manifests of their updates, which are not here.
    """
    elsewhere = []
    await settled(lambda: r.parts.outer.step == 0)
    r.parts.standing.theta_in_use = True
    await commit(r)
    for each in range(1, step):
        update = await sound_update(r, each)
        elsewhere.append(r.parts.store.get_chunk(update))
        r.parts.store.chunk_path(update).unlink()
        await commit(r, update)
    await commit(r, snapshot=snapshot)
    await settled(lambda: bool(r.parts.ledger.state.snapshot))
    r.parts.standing.theta_in_use = False
    r.parts.changes.ring()
    return elsewhere


@pytest.mark.parametrize("away", [12, 6])
async def test_node_that_fell_behind_takes_the_way_with_fewer_bytes(
    tmp_path: Path, away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    async with following(tmp_path) as r:
        by_log = update_blobs.payload_bytes_about(r.parts) * (away - 1) <= 8 * r.parts.layout.numel
        elsewhere = await fallen_behind(r, away, certified_elsewhere(r, away))
        if by_log:
            await settled(lambda: bool(r.parts.fetching))
            for data in elsewhere:
                r.parts.store.put_chunk(data)
        await settled(lambda: r.parts.outer.step == away + 1)
        assert by_log == (away == 6)
        assert [(each["step"], each["to"]) for each in r.said("leapt")] == (
            [] if by_log else [(1, away)]
        )
        steps = [each["step"] for each in r.said("committed")]
        assert steps == (list(range(away + 1)) if by_log else [0, away])


async def test_stored_updates_cost_nothing_and_are_applied(tmp_path: Path) -> None:
    async with following(tmp_path) as r:
        await settled(lambda: r.parts.outer.step == 0)
        r.parts.standing.theta_in_use = True
        for _ in range(12):
            await commit(r)
        await commit(r, snapshot=certified_elsewhere(r, 12))
        r.parts.standing.theta_in_use = False
        r.parts.changes.ring()
        await settled(lambda: r.parts.outer.step == 13)
        assert (len(r.said("committed")), r.said("leapt")) == (13, [])


async def test_log_is_followed_if_nobody_has_the_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    monkeypatch.setattr(module, "LOST_S", 0.05)
    async with following(tmp_path) as r:
        write = r.parts.journal.write

        def patient_with_the_log(event: str, **fields: object) -> None:
            if event == "snapshot-useless":
                monkeypatch.setattr(module, "LOST_S", 100.0)
            write(event, **fields)

        monkeypatch.setattr(r.parts.journal, "write", patient_with_the_log)
        elsewhere = await fallen_behind(r, 12, SnapshotRef(12, digest_of(b"gone")))
        await settled(lambda: bool(r.said("snapshot-useless")))
        for data in elsewhere:
            r.parts.store.put_chunk(data)
        await settled(lambda: r.parts.outer.step == 13)
        assert [each["digest"] for each in r.said("snapshot-useless")] == [digest_of(b"gone")]
        assert (len(r.said("committed")), r.said("leapt")) == (13, [])


async def test_node_that_hears_of_a_longer_chain_waits_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(module, "HEAR_FIRST_S", 10.0)
    r = await new_rig(tmp_path, rules=ALONE)
    r.parts.peers.note_heartbeat(ANN.peer, heartbeat(r.run.id, height=2), r.parts.now())
    nursery.start_soon(keep_outer_state, r.parts)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert r.parts.outer.step is None
    await commit(r)
    await settled(lambda: r.parts.outer.step == 1)


async def test_genesis_that_is_corrupt_again_and_again_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, rules=ALONE) as r:

        def rotten(vectors: object, store: object, digest: Digest) -> None:
            raise ChunkCorrupt(f"chunk {digest} no longer matches its digest")

        monkeypatch.setattr(type(r.parts.outer.vectors), "load_snapshot", rotten)
        with pytest.raises(ChunkCorrupt):
            await keep_outer_state(r.parts)
        assert len(r.said("chunk-damaged")) == 3


async def test_node_that_catches_up_leaves_old_snapshots_to_others(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, steps=9) as r:
        await settled(lambda: r.parts.outer.step == 9)
        await settled(lambda: bool(r.said("snapshot")))
        assert [each["step"] for each in r.said("snapshot")] == [8]


async def test_snapshot_of_an_abandoned_chain_is_not_used(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=ALONE, steps=99) as r:
        await commit(r)
        state = r.parts.ledger.state
        snapshot = r.parts.store.put_blob("snapshot", [b"of some chain"], {})
        ours = Head(r.parts.run, state.height, state.head, 1, snapshot, 1)
        for head, trusted in (
            (ours, True),
            (replace(ours, head=digest_of(b"an entry of the branch")), False),
            (replace(ours, height=state.height + 1), False),
        ):
            r.parts.store.put_head(head)
            start = best_start(r.parts, await look(r.parts))
            assert start == (Start(1, snapshot) if trusted else Start(0, r.parts.manifest.genesis))


async def test_snapshots_below_a_named_checkpoint_are_not_used(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=ALONE, steps=99) as r:
        for step in range(4):
            await commit(r, snapshot=SnapshotRef(step, digest_of(b"certified")))
        ledger = r.parts.ledger
        base = base_at(ledger.rules, ledger.kept, ledger.state.height)
        assert base is not None
        assert base.state.step == 3
        ledger.kept.prune(base)
        snapshot = r.parts.store.put_blob("snapshot", [b"of some chain"], {})
        r.parts.store.put_head(Head(r.parts.run, 1, digest_of(b"?"), 4, snapshot, 4))
        r.parts.origin = Origin(base)
        assert best_start(r.parts, await look(r.parts)) == Start(4, snapshot)
        r.parts.origin = Origin(base, base.checkpoint)
        assert best_start(r.parts, await look(r.parts)) != Start(4, snapshot)
