"""Manifests: equal contents have the same digest, and a malformed manifest from a peer is
refused.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack
from p2ptrain.errors import ChunkCorrupt, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.store import BlobManifest, digest_of
from p2ptrain.store.blob import (
    META_BYTES_MAX,
    describe,
    filling,
    looks_like_manifest,
    read_across,
    read_whole,
)

A, B = digest_of(b"a"), digest_of(b"b")


def manifest(**changes: Any) -> BlobManifest:
    return BlobManifest(
        **{
            "kind": "snapshot",
            "size": 1500,
            "chunk_bytes": 1024,
            "chunks": (A, B),
            "meta": {"step": 3},
            **changes,
        }
    )


def wire(**changes: object) -> bytes:
    value = {
        "kind": "snapshot",
        "size": 1500,
        "chunk_bytes": 1024,
        "chunks": [bytes.fromhex(A), bytes.fromhex(B)],
        "meta": {"step": 3},
        **changes,
    }
    return pack({key: field for key, field in value.items() if field is not None})


def test_manifest_survives_encoding() -> None:
    sent = manifest()
    assert BlobManifest.from_wire(sent.to_wire()) == sent
    assert sent.to_wire() == wire()
    assert [sent.chunk_size(0), sent.chunk_size(1)] == [1024, 476]


@pytest.mark.parametrize("size", [0, 1, 1024, 300_000, 4_000_000])
def test_large_blob_is_read_without_a_second_copy(size: int) -> None:
    data = random.Random(size).randbytes(size)
    described = describe("update", [data], 1024, {})
    starts = {chunk: at * 1024 for at, chunk in enumerate(described.chunks)}

    def read_into(chunk: Digest, view: memoryview) -> None:
        view[:] = memoryview(data)[starts[chunk] :][: len(view)]

    tracemalloc.start()
    whole = bytearray(described.size)
    read_across(described, [memoryview(whole)], read_into)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert whole == read_whole(described, read_into) == data
    assert peak < 1.2 * size + 2**16


def test_failed_read_leaves_nothing_that_crashes_the_collector() -> None:
    """In Python 3.12.1, the garbage collector crashed when a reference cycle with a traceback held
    a view of a BytesIO.
    """
    described = describe("update", [bytes(3000)], 1024, {})

    def read_into(chunk: Digest, view: memoryview) -> None:
        raise ChunkCorrupt(f"{chunk} is not what it should be")

    def fail() -> None:
        try:
            read_whole(described, read_into)
        except ChunkCorrupt as exc:
            kept = exc  # The frame, the exception and its traceback now refer to each other.
            assert kept.__traceback__ is not None

    gc.freeze()  # The objects of other tests are not part of this, and collecting them takes long.
    try:
        for _ in range(20):
            fail()
            gc.collect()
    finally:
        gc.unfreeze()


def test_empty_blob_has_no_chunks() -> None:
    assert BlobManifest.from_wire(manifest(size=0, chunks=()).to_wire()).chunks == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -1},
        {"size": 1024},
        {"size": 2049},
        {"size": 2**62},
        {"size": True},
        {"size": "1500"},
        {"chunk_bytes": 0},
        {"chunk_bytes": -1024},
        {"chunk_bytes": 1},
        {"chunk_bytes": 2**40, "chunks": [bytes(32)]},
        {"chunks": [bytes(31), bytes(32)]},
        {"chunks": [A, B]},
        {"chunks": bytes(64)},
        {"chunks": None},
        {"kind": ""},
        {"kind": "../../etc"},
        {"kind": "x" * 33},
        {"kind": 7},
        {"meta": []},
        {"meta": {"x": b"y" * META_BYTES_MAX}},
        {"surplus": 1},
    ],
)
def test_hostile_manifest_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ManifestInvalid):
        BlobManifest.from_wire(wire(**changes))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_as_a_manifest(data: bytes) -> None:
    with pytest.raises(ManifestInvalid):
        BlobManifest.from_wire(data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_manifest_with_a_changed_byte_is_refused_or_is_a_different_manifest(
    position: int, value: int
) -> None:
    data = bytearray(manifest().to_wire())
    data[position % len(data)] = value
    try:
        changed = BlobManifest.from_wire(data)
    except ManifestInvalid:
        return
    assert changed.to_wire() == bytes(data)


def test_manifest_that_does_not_fit_in_a_chunk_is_refused() -> None:
    chunks = tuple([A] * 130_000)
    with pytest.raises(ManifestInvalid):
        manifest(size=1024 * len(chunks), chunks=chunks).to_wire()


def test_chunks_with_one_digest_must_have_one_length() -> None:
    assert manifest(size=2048, chunks=(A, A)).sizes() == {A: 1024}
    with pytest.raises(ManifestInvalid):
        manifest(chunks=(A, A)).sizes()


def test_manifest_is_recognised_and_text_is_not() -> None:
    assert looks_like_manifest(manifest().to_wire())
    assert not looks_like_manifest(b"once upon a time")
    assert not looks_like_manifest(b"")


@given(st.lists(st.binary(max_size=50), max_size=12), st.integers(1, 16))
def test_parts_of_any_length_fill_chunks_of_equal_size(
    parts: list[bytes], chunk_bytes: int
) -> None:
    fill, buffer = filling(parts), bytearray(chunk_bytes)
    pieces = list[bytes]()
    while count := fill(memoryview(buffer)):
        pieces.append(bytes(buffer[:count]))
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) == chunk_bytes for piece in pieces[:-1])
