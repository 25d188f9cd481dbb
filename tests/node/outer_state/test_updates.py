"""An update is checked before a vote, and fetched again if its bytes are corrupt."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain import kernels
from p2ptrain.archive.update_format import KIND, Opened, UpdateFormat, published_formats
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.kernels import codecs
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.ledger.messages.effects import FetchUpdate
from p2ptrain.ledger.messages.peer_reports import UpdateHeld
from p2ptrain.node.consensus.ledger_task import _carry_out, _hold_update
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Parts
from p2ptrain.ring import mean_max
from p2ptrain.run.manifest import CodecName, CodecSpec
from p2ptrain.store import digest_of
from p2ptrain.testing.published import manifest_of, policy
from tests.node.rig import Neighbour, opening, rig, settled


def payload_of(parts: Parts) -> bytearray:
    """A valid update."""
    vector = np.linspace(-1, 1, parts.layout.numel, dtype=np.float32)
    payload = bytearray(parts.outer_step(0).update.payload_bytes)
    parts.outer_step(0).codec.quantise(vector, payload)
    return payload


async def test_stored_update_is_read_back(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        payload, store = payload_of(r.parts), r.parts.store
        third, fourth = r.parts.outer_step(3), r.parts.outer_step(4)
        digest = third.update.write(store, payload)
        assert await update_blobs.obtain(r.parts, digest, third) == payload
        await update_blobs.inspect(r.parts, digest, third)
        assert digest == third.update.write(store, bytearray(payload))
        assert digest != fourth.update.write(store, bytearray(payload))


async def refused(parts: Parts, digest: Digest, step: int = 3) -> str:
    """The refusals of `digest` by a voter, and by a node that is to apply it."""
    with pytest.raises(RemoteProtocolError) as before_a_vote:
        await update_blobs.inspect(parts, digest, parts.outer_step(step))
    with pytest.raises(RemoteProtocolError):
        await update_blobs.obtain(parts, digest, parts.outer_step(step))
    return before_a_vote.value.what


async def test_invalid_update_of_this_step_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        parts, store = r.parts, r.parts.store
        payload = payload_of(parts)
        meta = parts.outer_step(3).update.meta
        of_step_3 = parts.outer_step(3).update.write(parts.store, payload)
        assert "not an update of outer step 4" in await refused(parts, of_step_3, 4)
        assert "not an update" in await refused(parts, parts.manifest.genesis)
        foreign = store.put_blob("update", [payload], meta | {"run": "f" * 64})
        assert "not an update" in await refused(parts, foreign)
        short = store.put_blob("update", [payload[:-1]], meta)
        assert "bytes" in await refused(parts, short)
        payload[:4] = struct.pack("<f", float("nan"))
        nan = store.put_blob("update", [payload], meta)
        assert "invalid values" in await refused(parts, nan)


async def test_voter_refuses_an_update_that_honest_peers_cannot_make(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        parts, most = r.parts, r.parts.manifest.influence_max
        r.decide(opening(parts.ledger.state, Participant(parts.me, 16, 1)))
        for size, refusal in (
            (most, ""),
            (1.02 * most, f"by {1.02 * most:.3g}; the run allows {most:.3g}"),
        ):
            vector = np.full(parts.layout.numel, size, np.float32)
            payload = bytearray(parts.outer_step(0).update.payload_bytes)
            parts.outer_step(0).codec.quantise(vector, payload)
            digest = parts.outer_step(0).update.write(parts.store, payload)
            await _hold_update(parts, digest, 0)
            assert [refusal in str(each["reason"]) for each in r.said("bad-update")] == (
                [True] if refusal else []
            )
        (held,) = r.heard()
        assert isinstance(held, UpdateHeld)
        assert held.reduce == (0, 0), "it counts for this reduce only"


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4"])
@pytest.mark.parametrize("variant", kernels.VARIANTS)
def test_bound_holds_for_each_element_in_all_kernels(
    name: CodecName, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value at the bound is accepted, and the next larger number is refused. So are codes that
    only a liar writes, although their scales are valid.
    """
    monkeypatch.setattr(codecs, "_index", lambda wanted: kernels.VARIANTS.index(variant))
    organiser = PeerId("12D3KooWGRUVh7cEQrhBKWmTk5kEiBNJhhpfnoUSKqFJKBRKPT7e")
    manifest = manifest_of(organiser, codec=CodecSpec(name, 64))
    form = published_formats(RunId("ab" * 32), manifest)[0]
    opened, numel = Opened("ring", 3), form.numel
    payload = bytearray(form.payload_bytes)
    peak = form.codec.quantise(np.linspace(-1, 1, numel, dtype=np.float32), payload)
    fits = smallest_bound(form, opened, peak)
    less = math.nextafter(fits, 0) * (1 - 2**-40)
    replace(form, influence_max=fits).hold(payload, opened)
    with pytest.raises(RemoteProtocolError) as caught:
        replace(form, influence_max=less).hold(payload, opened)
    assert caught.value.code == "INFLUENCE-BROKEN"
    if form.codec.reach > 1:
        payload[-1] = {"int8": 0x80, "int4": 0x88}[name]  # A code that no codec writes.
        with pytest.raises(RemoteProtocolError):
            replace(form, influence_max=fits).hold(payload, opened)


def smallest_bound(form: UpdateFormat, opened: Opened, peak: float) -> float:
    """The smallest bound on one participant that allows a mean as large as `peak`."""
    low, high = 0.0, 4 * peak
    for _ in range(200):
        middle = (low + high) / 2
        fits = mean_max(form.codec, "ring", opened.peers, middle, feedback=False) >= peak
        low, high = (low, middle) if fits else (middle, high)
    return high


async def test_digest_that_names_no_blob_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        bare = r.parts.store.put_chunk(b"a data block, or anything")
        assert "not a valid blob" in await refused(r.parts, bare)


async def test_voter_survives_any_proposed_update(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        bare = r.parts.store.put_chunk(b"not a blob")
        genesis = r.parts.manifest.genesis
        for digest in (bare, genesis):
            await _hold_update(r.parts, digest, 0)
        assert [each["digest"] for each in r.said("bad-update")] == [bare, genesis]
        assert r.heard() == []
        assert r.parts.holding == set()


async def test_missing_bytes_are_searched_only_while_the_step_lasts(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r, trio.open_nursery() as nursery:
        nowhere = digest_of(b"nowhere")
        nursery.start_soon(_hold_update, r.parts, nowhere, 0)
        await settled(lambda: nowhere in r.parts.fetching)
        r.decide(opening(r.parts.ledger.state, Participant(r.parts.me, 16, 1)))
        r.parts.changes.ring()
        assert r.parts.holding == {nowhere}
        r.decide(Commit(0, 0, digest_of(b"another")))
        r.parts.changes.ring()
        await settled(lambda: not r.parts.holding and not r.parts.fetching)
        assert r.heard() == []


async def test_bytes_of_a_step_that_just_ended_are_not_called_bad(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        parts = r.parts
        r.decide(opening(parts.ledger.state, Participant(parts.me, 16, 1)))
        digest = parts.outer_step(0).update.write(parts.store, payload_of(parts))
        async with trio.open_nursery() as sending:
            async with trio.open_nursery() as holding:
                wanted, outboxes = FetchUpdate(digest, ()), Outboxes(parts, sending)
                await _carry_out(parts, [wanted], None, outboxes, holding)
                r.decide(Commit(0, 0, digest))  # The next entry came before any task had its turn.
            sending.cancel_scope.cancel()
        assert r.said("bad-update") == []
        assert parts.holding == set()


async def test_corrupt_update_on_our_disk_is_fetched_again(tmp_path: Path) -> None:
    async with rig(tmp_path / "a", admission="open") as r, rig(tmp_path / "b") as other:
        other.parts.listener._gate._allowed = lambda peer: True
        Neighbour(r, other)
        payload = payload_of(r.parts)
        meta = r.parts.outer_step(0).update.meta
        digest = r.parts.outer_step(0).update.write(r.parts.store, payload)
        assert other.parts.store.put_blob(KIND, [payload], meta) == digest
        path = r.parts.store.chunk_path(r.parts.store.manifest(digest).chunks[0])
        rotten = bytes(path.stat().st_size)
        path.unlink()
        path.write_bytes(rotten)
        assert await update_blobs.obtain(r.parts, digest, r.parts.outer_step(0)) == payload
        assert len(r.said("chunk-damaged")) == 1
        assert r.parts.store.holds_blob(digest)


async def test_oversized_blob_in_place_of_an_update_is_not_fetched(tmp_path: Path) -> None:
    async with rig(tmp_path / "a", admission="open") as r, rig(tmp_path / "b") as other:
        other.parts.listener._gate._allowed = lambda peer: True
        Neighbour(r, other)
        chunks = [bytes([number]) * 4096 for number in range(1, 50)]
        giant = other.parts.store.put_blob(KIND, chunks, r.parts.outer_step(0).update.meta)
        await _hold_update(r.parts, giant, 0)
        assert len(r.said("bad-update")) == 1
        held = [r.parts.store.has_chunk(each) for each in other.parts.store.manifest(giant).chunks]
        assert not any(held)
