"""θ and m: equal updates give equal bits, and a snapshot's digest depends only on these bits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, LocalProtocolError, ManifestInvalid
from p2ptrain.kernels import CODECS, CodecName, reference
from p2ptrain.state import Arena, OuterState, SharedVector, write_frozen, write_state
from p2ptrain.store import MemoryDisk, Store
from p2ptrain.sync.fragments import Fragment

CODEC = kernels.codec("int8", 64)
LR, MU = 0.7, 0.9


@pytest.fixture
def store() -> Store:
    return Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1024)


SHARE_ELEMENTS = 256
"""The number of elements that a thread updates at a time (a share). It is small, so that
even a short vector has many shares, and the tests fail if threads interfere with each other.
"""


def payload(numel: int, seed: int, codec: kernels.Codec = CODEC) -> bytes:
    gradient = np.random.default_rng(seed).standard_normal(numel, dtype=np.float32)
    out = bytearray(codec.encoded_bytes(numel))
    codec.quantise(gradient, out)
    return bytes(out)


def state_of(numel: int, seed: int = 0, threads: int | None = None) -> OuterState:
    state = OuterState(numel, threads=threads, share_elements=SHARE_ELEMENTS)
    state.theta[:] = np.random.default_rng(seed).standard_normal(numel, dtype=np.float32)
    return state


def reference_step(
    theta: np.ndarray, momentum: np.ndarray, update: bytes, codec: kernels.Codec = CODEC
) -> None:
    expected = reference.codec(codec.name, codec.block)
    expected.outer_step(theta, momentum, np.frombuffer(update, np.uint8), LR, MU)


def bits(vector: np.ndarray) -> bytes:
    return bytes(vector.tobytes())


@pytest.mark.parametrize("numel", [1, 63, 64, 65, 255, 256, 257, 5000])
@pytest.mark.parametrize("threads", [1, 3])
def test_updates_match_the_reference_bits_on_any_number_of_threads(
    numel: int, threads: int | None
) -> None:
    state = state_of(numel, threads=threads)
    theta, momentum = state.theta.copy(), state.momentum.copy()
    for step in range(3):
        state.apply(payload(numel, step), LR, MU, CODEC)
        reference_step(theta, momentum, payload(numel, step))
    assert bits(state.theta) == bits(theta)
    assert bits(state.momentum) == bits(momentum)


@pytest.mark.parametrize("name", CODECS)
def test_update_can_use_any_codec(name: CodecName) -> None:
    codec = kernels.codec(name, 32)
    state = state_of(5000, threads=2)
    theta, momentum = state.theta.copy(), state.momentum.copy()
    state.apply(payload(5000, 1, codec), LR, MU, codec)
    reference_step(theta, momentum, payload(5000, 1, codec), codec)
    assert bits(state.theta) == bits(theta)
    assert bits(state.momentum) == bits(momentum)


CUT = Fragment(((0, 70), (200, 900), (901, 1000), (2000, 2001)))


@pytest.mark.parametrize("threads", [1, 3])
def test_fragment_update_changes_only_its_fragment(threads: int | None) -> None:
    state = state_of(3000, threads=threads)
    theta, momentum = state.theta.copy(), state.momentum.copy()
    for step in range(3):
        state.apply(payload(CUT.numel, step), LR, MU, CODEC, CUT)
        cut_theta, cut_momentum = (np.empty(CUT.numel, np.float32) for _ in range(2))
        CUT.gather(theta, cut_theta)
        CUT.gather(momentum, cut_momentum)
        reference_step(cut_theta, cut_momentum, payload(CUT.numel, step))
        CUT.scatter(cut_theta, theta)
        CUT.scatter(cut_momentum, momentum)
    assert bits(state.theta) == bits(theta)
    assert bits(state.momentum) == bits(momentum)


def test_snapshot_does_not_change_while_a_fragment_is_updated(store: Store) -> None:
    state = state_of(3000)
    before = state.describe(store.chunk_bytes, {}).digest
    with state.freeze(store.chunk_bytes) as frozen:
        state.apply(payload(CUT.numel, 0), LR, MU, CODEC, CUT)
        assert write_frozen(store, frozen, state.numel, {}) == before
    assert state.describe(store.chunk_bytes, {}).digest != before


def test_block_longer_than_a_share_is_not_split() -> None:
    state = state_of(3000)
    theta, momentum = state.theta.copy(), state.momentum.copy()
    long = kernels.codec("int8", 1024)
    state.apply(payload(3000, 1, long), LR, MU, long)
    reference_step(theta, momentum, payload(3000, 1, long), long)
    assert bits(state.theta) == bits(theta)


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: p + b"\0", lambda p: b""])
def test_update_of_a_wrong_length_changes_nothing(change: Callable[[bytes], bytes]) -> None:
    state = state_of(1000)
    before = state.digest()
    with pytest.raises(ValueError):
        state.apply(change(payload(1000, 1)), LR, MU, CODEC)
    assert state.digest() == before


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0])
def test_update_with_a_bad_scale_in_its_last_block_changes_nothing(scale: float) -> None:
    state = state_of(1000)
    before = state.digest()
    bad = bytearray(payload(1000, 1))
    start = CODEC.encoded_bytes(960)
    bad[start : start + 4] = np.float32(scale).tobytes()
    with pytest.raises(kernels.BadScale):
        state.apply(bytes(bad), LR, MU, CODEC)
    assert state.digest() == before


def test_digest_covers_every_part_of_the_state() -> None:
    state = state_of(1000)
    digests = {state.digest()}
    for vector, index in ((state.theta, 0), (state.theta, 999), (state.momentum, 999)):
        vector[index] += 1
        digests.add(state.digest())
    assert len(digests) == 4
    assert OuterState(1000).digest() == OuterState(1000).digest()


def test_node_that_loads_a_snapshot_has_the_same_bits(store: Store) -> None:
    state, other = state_of(3000), OuterState(3000)
    state.apply(payload(3000, 1), LR, MU, CODEC)
    digest = state.write_snapshot(store, {"step": 1})
    manifest = other.load_snapshot(store, digest)
    assert manifest.meta == {"step": 1, "numel": 3000}
    assert other.digest() == state.digest()
    assert other.write_snapshot(store, {"step": 1}) == digest
    for node in (state, other):
        node.apply(payload(3000, 2), LR, MU, CODEC)
    assert other.digest() == state.digest()


def test_snapshot_of_plain_vectors_has_the_digest_that_a_node_computes(store: Store) -> None:
    state = state_of(700)
    meta = {"step": 0}
    assert write_state(store, state.theta, state.momentum, meta) == state.write_snapshot(
        store, meta
    )


def test_snapshot_does_not_change_while_updates_are_applied(store: Store) -> None:
    state = state_of(3000)
    calm = state_of(3000)
    expected = calm.write_snapshot(store, {})
    with state.freeze(store.chunk_bytes) as frozen:
        state.apply(payload(3000, 1), LR, MU, CODEC)
        applied = []

        def apply_more() -> None:
            for step in range(2, 30):
                state.apply(payload(3000, step), LR, MU, CODEC)
                applied.append(step)

        thread = threading.Thread(target=apply_more)
        thread.start()
        digest = write_frozen(store, frozen, state.numel, {})
        thread.join(100)
    assert digest == expected
    assert len(applied) == 28
    calm.apply(payload(3000, 1), LR, MU, CODEC)
    for step in applied:
        calm.apply(payload(3000, step), LR, MU, CODEC)
    assert state.digest() == calm.digest()


class StuckDisk(MemoryDisk):
    """Blocks every write until `go_on` is set."""

    stuck, go_on = threading.Event(), threading.Event()

    def write(self, path: Path, data: memoryview) -> None:
        self.stuck.set()
        assert self.go_on.wait(100)
        super().write(path, data)


def test_updates_do_not_wait_until_a_snapshot_is_on_disk() -> None:
    disk = StuckDisk()
    store = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    state, calm = state_of(5000), state_of(5000)
    digests = []
    writer = threading.Thread(target=lambda: digests.append(state.write_snapshot(store, {})))
    writer.start()
    assert disk.stuck.wait(100)
    for step in range(3):
        state.apply(payload(5000, step), LR, MU, CODEC)  # would hang here if it waited for the disk
    assert writer.is_alive()
    disk.go_on.set()
    writer.join(100)
    assert digests == [
        calm.write_snapshot(Store(Path("/s"), disk=MemoryDisk(), chunk_bytes=1024), {})
    ]


def test_snapshots_are_taken_one_at_a_time(store: Store) -> None:
    state = state_of(1000)
    with state.freeze(1024):
        with pytest.raises(LocalProtocolError):
            state.write_snapshot(store, {})
        with pytest.raises(LocalProtocolError):
            state.load_snapshot(store, write_state(store, state.theta, state.momentum, {}))
    state.write_snapshot(store, {})


def test_failed_snapshot_leaves_the_state_free_for_updates(store: Store) -> None:
    state = state_of(3000)
    with pytest.raises(ZeroDivisionError), state.freeze(1024) as frozen:
        frozen.fill(memoryview(bytearray(1000)))
        raise ZeroDivisionError
    state.apply(payload(3000, 1), LR, MU, CODEC)
    state.write_snapshot(store, {})


def test_blob_that_is_not_a_snapshot_of_this_size_is_refused(store: Store) -> None:
    state = state_of(1000)
    before = state.digest()
    for digest in (
        store.put_blob("update", [bytes(8000)], {}),
        store.put_blob("snapshot", [bytes(7996)], {}),
        store.put_blob("snapshot", [bytes(16000)], {}),
        store.put_chunk(b"not a blob"),
    ):
        with pytest.raises(ManifestInvalid):
            state.load_snapshot(store, digest)
    assert state.digest() == before


def test_snapshot_with_a_corrupt_chunk_is_reported() -> None:
    disk = MemoryDisk()
    store = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    state, other = state_of(1000), OuterState(1000)
    digest = state.write_snapshot(store, {})
    chunk = store.manifest(digest).chunks[2]
    good = store.get_chunk(chunk)
    disk.damage(store.chunk_path(chunk), lambda data: data[:-1] + b"\1")
    with pytest.raises(ChunkCorrupt):
        other.load_snapshot(store, digest)
    with pytest.raises(ChunkMissing):
        other.load_snapshot(store, digest)
    store.put_chunk(good)
    other.load_snapshot(store, digest)
    assert other.digest() == state.digest()


CHILD = """
import sys
from p2ptrain.state import SharedVector
theta, local = (SharedVector.attach(int(fd), 1000) for fd in sys.argv[1:])
local.array[:] = theta.array + 1
"""


def test_subprocess_maps_the_same_memory_through_descriptors() -> None:
    state = state_of(1000)
    arena = Arena(state)
    command = [sys.executable, "-c", CHILD, *map(str, arena.fds)]
    subprocess.run(command, pass_fds=arena.fds, check=True)
    assert bits(arena.local) == bits(state.theta + 1)
    assert arena.theta is state.theta


def test_shared_vector_starts_as_zeros_and_cannot_be_resized() -> None:
    vector = SharedVector(100)
    assert bits(vector.array) == bytes(400)
    assert vector.numel == 100
    with pytest.raises(PermissionError):
        os.truncate(vector.fd, 8)


def test_views_stay_valid_after_their_vector_is_closed() -> None:
    vector = SharedVector(100)
    view = vector.array
    vector.close()
    vector.close()
    view[:] = 3
    assert view.sum() == 300
    with pytest.raises(AssertionError):
        _ = vector.fd


def test_elements_beyond_two_to_the_31_are_addressed_correctly() -> None:
    # The vector is sparse: a page takes memory only once something has been written to it.
    vector = SharedVector(2**31 + 4096)
    vector.array[-1] = 7
    assert vector.bytes_view[-4:] == np.float32(7).tobytes()
    assert vector.array[2**31 - 1] == 0
