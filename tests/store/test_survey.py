"""Inspecting a store that another process may have open."""

from __future__ import annotations

from pathlib import Path

from p2ptrain.store import LocalDisk, Store, Survey, Usage

CHUNK_BYTES = 1024


def test_usage_is_split_by_kind_and_counts_shared_chunks_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store", chunk_bytes=CHUNK_BYTES) as store:
        update = store.put_blob("update", [b"u" * CHUNK_BYTES, b"v" * 10], {})
        store.put_blob("update", [b"u" * CHUNK_BYTES], {"another": 1})
        store.put_blob("snapshot", [b"s" * 2000], {})
        store.put_chunk(b"a data block")
        # The survey works although the store is still open here.
        usage = Survey(store.root, LocalDisk()).usage()
        whole = sum(path.stat().st_size for path in store.root.glob("objects/*/*"))
        assert list(usage) == ["data", "snapshot", "update"]
        assert usage["data"] == Usage(0, 1, 12)
        assert (usage["snapshot"].blobs, usage["snapshot"].chunks) == (1, 3)
        assert (usage["update"].blobs, usage["update"].chunks) == (2, 4)
        assert sum(each.bytes for each in usage.values()) == whole
        assert store.holds_blob(update)


def test_missing_store_counts_as_empty(tmp_path: Path) -> None:
    survey = Survey(tmp_path / "none", LocalDisk())
    assert survey.usage() == {}
    assert list(survey.damaged()) == []


def test_every_chunk_is_compared_with_its_digest(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        sound, rotten = store.put_chunk(b"sound"), store.put_chunk(b"rotten")
        store.chunk_path(rotten).write_bytes(b"Rotten")
        (store.root / "objects" / "a" / "stray").write_bytes(b"no chunk")
    assert dict(Survey(store.root, LocalDisk()).damaged()) == {sound: False, rotten: True}


def test_data_block_that_looks_like_a_manifest_counts_as_data(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        blob = store.put_blob("update", [b"u"], {})
        store.put_chunk(store.get_chunk(blob)[:-1])
    assert Survey(store.root, LocalDisk()).usage()["data"].chunks == 1
