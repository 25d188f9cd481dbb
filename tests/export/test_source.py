"""θ is read from a snapshot exactly, or an error is raised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2ptrain.errors import ChunkMissing
from p2ptrain.export.source import ThetaOfSnapshot
from p2ptrain.state import SNAPSHOT
from p2ptrain.store import Store, StoreReader

NUMEL = 1000
THETA = np.arange(NUMEL, dtype="<f4")


def test_theta_is_the_first_half_of_a_snapshot_for_any_chunk_size(tmp_path: Path) -> None:
    with Store(tmp_path, chunk_bytes=1024) as store:
        digest = store.put_blob(SNAPSHOT, [THETA.tobytes(), THETA.tobytes()], {})
    source = ThetaOfSnapshot(StoreReader(tmp_path), digest, NUMEL)
    read = [piece for numel in (1, 300, 699) for piece in source.pieces(numel)]
    assert np.array_equal(np.concatenate(read), THETA)


def test_snapshot_removed_by_its_node_is_reported_with_advice(tmp_path: Path) -> None:
    with Store(tmp_path, chunk_bytes=1024) as store:
        digest = store.put_blob(SNAPSHOT, [THETA.tobytes(), THETA.tobytes()], {})
        source = ThetaOfSnapshot(StoreReader(tmp_path), digest, NUMEL)
        list(source.pieces(100))
        gone = store.manifest(digest).chunks[2]
        store.chunk_path(gone).unlink()
    with pytest.raises(ChunkMissing) as told:
        list(source.pieces(NUMEL - 100))
    assert told.value.what == f"the snapshot {digest[:12]}… is incomplete in this store"
    assert told.value.evidence == (f"chunk {gone} is missing",)
    assert f"p2ptrain ckpt pin {digest[:12]}" in told.value.do
