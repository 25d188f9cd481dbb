"""An update is checked before a vote, and its bytes are fetched again if they are damaged on
disk."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain import kernels
from p2ptrain.archive.update_format import KIND, ReduceShape, UpdateFormat, published_formats
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.kernels import codecs
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.ledger.messages.effects import FetchUpdate
from p2ptrain.ledger.messages.peer_reports import UpdateHeld
from p2ptrain.node.consensus.ledger_task import _carry_out, _hold_update
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.ring import mean_max
from p2ptrain.run.manifest import CodecName, CodecSpec
from p2ptrain.store import digest_of
from p2ptrain.testing.published import manifest_of, policy
from tests.node.rig import Neighbour, opening, rig, settled


def payload_of(context: Context) -> bytearray:
    """Return the payload of a valid update."""
    vector = np.linspace(-1, 1, context.layout.numel, dtype=np.float32)
    payload = bytearray(context.outer_step(0).update.payload_bytes)
    context.outer_step(0).codec.quantise(vector, payload)
    return payload


async def test_stored_update_is_read_back_and_accepted(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        payload, store = payload_of(r.context), r.context.store
        third, fourth = r.context.outer_step(3), r.context.outer_step(4)
        digest = third.update.write(store, payload)
        assert await update_blobs.fetch_update(r.context, digest, third) == payload
        await update_blobs.inspect(r.context, digest, third)
        assert digest == third.update.write(store, bytearray(payload))
        assert digest != fourth.update.write(store, bytearray(payload))


async def refused(context: Context, digest: Digest, step: int = 3) -> str:
    """Check that a voter refuses to vote for the update `digest` of `step`, and that a node refuses
    to apply it. Return the voter's reason."""
    with pytest.raises(RemoteProtocolError) as before_a_vote:
        await update_blobs.inspect(context, digest, context.outer_step(step))
    with pytest.raises(RemoteProtocolError):
        await update_blobs.fetch_update(context, digest, context.outer_step(step))
    return before_a_vote.value.what


async def test_blob_that_is_not_a_valid_update_of_the_step_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        context, store = r.context, r.context.store
        payload = payload_of(context)
        meta = context.outer_step(3).update.meta
        of_step_3 = context.outer_step(3).update.write(context.store, payload)
        assert "not an update of outer step 4" in await refused(context, of_step_3, 4)
        assert "not an update" in await refused(context, context.manifest.genesis)
        foreign = store.put_blob("update", [payload], meta | {"run": "f" * 64})
        assert "not an update" in await refused(context, foreign)
        short = store.put_blob("update", [payload[:-1]], meta)
        assert "bytes" in await refused(context, short)
        payload[:4] = struct.pack("<f", float("nan"))
        nan = store.put_blob("update", [payload], meta)
        assert "invalid values" in await refused(context, nan)


async def test_voter_refuses_an_update_that_breaks_the_influence_bound(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        context, most = r.context, r.context.manifest.influence_max
        r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
        for size, refusal in (
            (most, ""),
            (1.02 * most, f"by {1.02 * most:.3g}; the run allows {most:.3g}"),
        ):
            vector = np.full(context.layout.numel, size, np.float32)
            payload = bytearray(context.outer_step(0).update.payload_bytes)
            context.outer_step(0).codec.quantise(vector, payload)
            digest = context.outer_step(0).update.write(context.store, payload)
            await _hold_update(context, digest, 0)
            assert [refusal in str(each["reason"]) for each in r.said("bad-update")] == (
                [True] if refusal else []
            )
        (held,) = r.heard()
        assert isinstance(held, UpdateHeld)
        assert held.reduce == (0, 0), "the report counts only for this reduce"


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4"])
@pytest.mark.parametrize("variant", kernels.VARIANTS)
def test_influence_bound_is_checked_for_each_element_by_all_kernels(
    name: CodecName, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload whose largest value is at the bound is accepted, and refused if the bound is
    slightly lower. A payload with a code that no codec writes is refused too, although its scales
    are valid."""
    monkeypatch.setattr(codecs, "_index", lambda wanted: kernels.VARIANTS.index(variant))
    organiser = PeerId("12D3KooWGRUVh7cEQrhBKWmTk5kEiBNJhhpfnoUSKqFJKBRKPT7e")
    manifest = manifest_of(organiser, codec=CodecSpec(name, 64))
    form = published_formats(RunId("ab" * 32), manifest)[0]
    opened, numel = ReduceShape("ring", 3), form.numel
    payload = bytearray(form.payload_bytes)
    peak = form.codec.quantise(np.linspace(-1, 1, numel, dtype=np.float32), payload)
    fits = smallest_bound(form, opened, peak)
    less = math.nextafter(fits, 0) * (1 - 2**-40)
    replace(form, influence_max=fits).check_bound(bytes(payload), opened)
    with pytest.raises(RemoteProtocolError) as caught:
        replace(form, influence_max=less).check_bound(bytes(payload), opened)
    assert caught.value.code == "INFLUENCE-BROKEN"
    if form.codec.reach > 1:
        payload[-1] = {"int8": 0x80, "int4": 0x88}[name]  # Codecs never write this code.
        with pytest.raises(RemoteProtocolError):
            replace(form, influence_max=fits).check_bound(bytes(payload), opened)


def smallest_bound(form: UpdateFormat, opened: ReduceShape, peak: float) -> float:
    """Return the smallest bound on one participant that allows a mean as large as `peak`."""
    low, high = 0.0, 4 * peak
    for _ in range(200):
        middle = (low + high) / 2
        fits = mean_max(form.codec, "ring", opened.peers, middle, feedback=False) >= peak
        low, high = (low, middle) if fits else (middle, high)
    return high


async def test_digest_that_does_not_name_a_blob_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        bare = r.context.store.put_chunk(b"a data block, or anything")
        assert "not a valid blob" in await refused(r.context, bare)


async def test_invalid_proposed_update_does_not_end_a_voter(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        bare = r.context.store.put_chunk(b"not a blob")
        genesis = r.context.manifest.genesis
        for digest in (bare, genesis):
            await _hold_update(r.context, digest, 0)
        assert [each["digest"] for each in r.said("bad-update")] == [bare, genesis]
        assert r.heard() == []
        assert r.context.ledger.updates_awaited == set()


async def test_update_that_no_peer_has_is_fetched_only_until_its_step_ends(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r, trio.open_nursery() as nursery:
        nowhere = digest_of(b"nowhere")
        nursery.start_soon(_hold_update, r.context, nowhere, 0)
        await settled(lambda: nowhere in r.context.blobs.in_flight)
        r.decide(opening(r.context.ledger.snapshot, Participant(r.context.me, 16, 1)))
        r.context.changes.notify_all()
        assert r.context.ledger.updates_awaited == {nowhere}
        r.decide(Commit(0, 0, digest_of(b"another")))
        r.context.changes.notify_all()
        await settled(
            lambda: not r.context.ledger.updates_awaited and not r.context.blobs.in_flight
        )
        assert r.heard() == []


async def test_update_of_a_step_that_just_ended_is_not_reported_as_bad(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        context = r.context
        r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
        digest = context.outer_step(0).update.write(context.store, payload_of(context))
        async with trio.open_nursery() as sending:
            async with trio.open_nursery() as holding:
                wanted, outboxes = FetchUpdate(digest, ()), Outboxes(context, sending)
                await _carry_out(context, [wanted], None, outboxes, holding)
                # The Commit is decided before the task that inspects the update has run.
                r.decide(Commit(0, 0, digest))
            sending.cancel_scope.cancel()
        assert r.said("bad-update") == []
        assert context.ledger.updates_awaited == set()


async def test_update_damaged_on_disk_is_fetched_again(tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", welcoming=True) as other,
    ):
        Neighbour(r, other)
        payload = payload_of(r.context)
        meta = r.context.outer_step(0).update.meta
        digest = r.context.outer_step(0).update.write(r.context.store, payload)
        assert other.context.store.put_blob(KIND, [payload], meta) == digest
        path = r.context.store.chunk_path(r.context.store.manifest(digest).chunks[0])
        rotten = bytes(path.stat().st_size)
        path.unlink()
        path.write_bytes(rotten)
        assert (
            await update_blobs.fetch_update(r.context, digest, r.context.outer_step(0)) == payload
        )
        assert len(r.said("chunk-damaged")) == 1
        assert r.context.store.holds_blob(digest)


async def test_oversized_blob_in_place_of_an_update_is_not_fetched(tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", welcoming=True) as other,
    ):
        Neighbour(r, other)
        chunks = [bytes([number]) * 4096 for number in range(1, 50)]
        giant = other.context.store.put_blob(KIND, chunks, r.context.outer_step(0).update.meta)
        await _hold_update(r.context, giant, 0)
        assert len(r.said("bad-update")) == 1
        held = [
            r.context.store.has_chunk(each) for each in other.context.store.manifest(giant).chunks
        ]
        assert not any(held)
