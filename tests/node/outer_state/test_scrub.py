"""A scrub (regular check of all chunks) finds damaged chunks before they are needed, reports them,
and fetches them from peers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
import trio.testing

from p2ptrain.dataplane import SecureSocket
from p2ptrain.ids import Digest
from p2ptrain.node.control.control_socket import COMMANDS
from p2ptrain.node.outer_state.retention import collect
from p2ptrain.node.outer_state.scrub import WARNING, one_pass, scrub
from p2ptrain.node.state.timing import RepairTiming
from p2ptrain.run import DataIndex
from p2ptrain.swarm import PURPOSE
from p2ptrain.swarm.wire import receive_request
from tests.node.rig import Neighbour, NewRig, Rig, rig, settled


@asynccontextmanager
async def beside_another(folder: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """Open a node, and a peer of the same run from which it can fetch chunks."""
    async with rig(folder / "a", admission="open") as r, rig(folder / "b", welcoming=True) as other:
        Neighbour(r, other)
        yield r, other


def rot(r: Rig, digest: Digest) -> None:
    path = r.context.store.chunk_path(digest)
    path.unlink()  # Other homes share the file, so it must not be overwritten.
    path.write_bytes(b"rotten")


def chunks_of(r: Rig, blob: Digest) -> tuple[Digest, ...]:
    return r.context.store.manifest(blob).chunks


async def test_damaged_chunks_are_reported_and_fetched_from_a_peer(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as (r, _):
        genesis = r.context.manifest.genesis
        first, second = chunks_of(r, genesis)[:2]
        for digest in (first, second, genesis):
            rot(r, digest)
        done = await one_pass(r.context, None)
        assert sorted(done.damaged) == sorted((first, second, genesis))
        assert (sorted(done.repaired), done.lost) == (sorted(done.damaged), [])
        assert done.chunks > 100
        assert r.context.store.read_blob(genesis)
        assert {each["digest"] for each in r.said("bit-rot")} == {first, second, genesis}
        assert "3 of" in r.context.alerts.warnings[WARNING].what
        assert "replaced with copies from peers: all" in r.context.alerts.warnings[WARNING].what
        assert (await one_pass(r.context, None)).damaged == []
        assert WARNING not in r.context.alerts


async def test_chunk_that_no_peer_has_is_reported_and_requested_again_later(
    tmp_path: Path,
) -> None:
    async with beside_another(tmp_path) as (r, other):
        ours = r.context.store.put_chunk(b"of us alone")
        theirs = chunks_of(r, r.context.manifest.genesis)[0]
        rot(r, ours)
        rot(r, theirs)
        done = await one_pass(r.context, None)
        assert (done.repaired, done.lost) == ([theirs], [ours])
        assert "no connected peer has the other 1" in r.context.alerts.warnings[WARNING].what
        other.context.store.put_chunk(b"of us alone")
        assert (await one_pass(r.context, None)).repaired == [ours]
        assert r.context.store.get_chunk(ours) == b"of us alone"


async def test_silent_source_does_not_block_a_pass(tmp_path: Path) -> None:
    def stands_still(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        while True:
            sock.set_deadline(30)
            receive_request(sock)

    async with beside_another(tmp_path) as (r, other):
        other.context.plane.listener.handle(PURPOSE, stands_still)
        rotten = chunks_of(r, r.context.manifest.genesis)[0]
        rot(r, rotten)
        r.wait_for(repair=RepairTiming(look_s=0.0, try_s=0.3))
        with trio.fail_after(60):
            done = await one_pass(r.context, None)
        assert done.lost == [rotten]


async def test_requested_pass_runs_at_full_speed(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    object.__setattr__(r.context.config, "scrub_bytes_per_s", 1000)
    nursery.start_soon(partial(scrub, r.context, first_s=0.0))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert r.said("scrubbed") == []
    assert await COMMANDS["scrub"](r.context) == {"asked": True}
    await settled(lambda: len(r.said("scrubbed")) == 2)
    assert [each["asked"] for each in r.said("scrubbed")] == [False, True]
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(r.said("scrubbed")) == 2


async def test_requested_pass_runs_even_if_scrubbing_is_disabled(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    object.__setattr__(r.context.config, "scrub_bytes_per_s", None)
    nursery.start_soon(scrub, r.context)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert r.said("scrubbed") == []
    r.context.blobs.scrub_asked.set()
    await settled(lambda: len(r.said("scrubbed")) == 1)


async def test_damage_found_by_garbage_collection_is_repaired(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as (r, _):
        spec = r.context.manifest.data
        r.context.blobs.data = DataIndex.from_bytes(
            r.context.store.read_blob(spec.index),
            train_blocks=spec.train_blocks,
            validation_blocks=spec.validation_blocks,
        )
        rot(r, r.context.manifest.genesis)
        await collect(r.context)
        assert [each["code"] for each in r.said("not-collected")] == ["CKPT-HASH"]
        assert r.context.blobs.scrub_asked.is_set()
        await one_pass(r.context, None)
        await collect(r.context)
        assert len(r.said("collected")) == 1
