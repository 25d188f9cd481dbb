"""Tests with θ and m of more than 2³¹ elements. Only a few pages of these vectors are ever touched.

Element offsets exceed 2³¹ and byte offsets 2³³. If the code used a 32-bit offset anywhere, the
offset would wrap around, and wrong elements or no elements would change.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.ids import Digest
from p2ptrain.state import Frozen, Layout, OuterState
from p2ptrain.state.frozen import Bytes
from p2ptrain.state.outer_state import SHARE_ELEMENTS, SNAPSHOT
from p2ptrain.store import CHUNK_BYTES, BlobManifest, BlobReader, digest_of

# A share is what one thread updates at a time: SHARE_ELEMENTS elements. NUMEL is not a multiple of
# the share or chunk size: the last share and chunk are short, and one chunk holds the end of θ and
# the beginning of m.
NUMEL = 2**31 + SHARE_ELEMENTS + 4096
LAST_SHARE = 2**31 + SHARE_ELEMENTS
CODEC = kernels.codec("int8", 64)
LR, MU = 0.7, 0.9


def zeros(count: int) -> mmap.mmap:
    """Return a map of this many zero bytes, which takes no memory until it is written to."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


NO_RESERVE = 0x4000
"""MAP_NORESERVE, a constant that `mmap` does not define. The option is safe here because the
mapping is never filled.
"""


@pytest.fixture
def state() -> Iterator[OuterState]:
    state = OuterState(NUMEL, threads=2)
    yield state
    state.close()


def of_the_tail(codec: kernels.Codec, gradient: np.ndarray) -> mmap.mmap:
    """Return a payload of NUMEL elements: zeros up to LAST_SHARE, then `gradient`."""
    payload = zeros(codec.encoded_bytes(NUMEL))
    start = codec.encoded_bytes(LAST_SHARE)
    codec.quantise(gradient, memoryview(payload)[start:])
    return payload


class EndsOnly:
    """A codec that applies only the first and the last share, and records the start of every
    requested share.
    """

    def __init__(self, codec: kernels.Codec, theta: np.ndarray) -> None:
        self._codec, self._base = codec, theta.ctypes.data
        self.name, self.block = codec.name, codec.block
        self.check, self.encoded_bytes = codec.check, codec.encoded_bytes
        self.starts: list[int] = []

    def outer_step(
        self, theta: memoryview, momentum: memoryview, payload: memoryview, lr: float, mu: float
    ) -> None:
        start = (np.frombuffer(theta, np.float32).ctypes.data - self._base) // 4
        self.starts.append(start)
        if start in (0, LAST_SHARE):
            self._codec.outer_step(theta, momentum, payload, lr, mu)


def test_update_applies_each_share_once_up_to_the_last_element(state: OuterState) -> None:
    gradient = np.random.default_rng(1).standard_normal(NUMEL - LAST_SHARE, dtype=np.float32)
    codec = EndsOnly(CODEC, state.theta)
    state.theta[LAST_SHARE:] = 1.0
    expected, momentum = state.theta[LAST_SHARE:].copy(), np.zeros_like(gradient)
    update = of_the_tail(CODEC, gradient)
    CODEC.outer_step(expected, momentum, memoryview(update)[-CODEC.encoded_bytes(4096) :], LR, MU)
    state.apply(memoryview(update), LR, MU, cast(kernels.Codec, codec))
    assert sorted(codec.starts) == list(range(0, NUMEL, SHARE_ELEMENTS))
    assert state.theta[LAST_SHARE:].tobytes() == expected.tobytes()
    assert state.momentum[LAST_SHARE:].tobytes() == momentum.tobytes()
    assert state.theta[:4096].tobytes() == state.momentum[:4096].tobytes() == bytes(16384)


@pytest.mark.parametrize("name", ["int8", "fp32"])
def test_kernel_checks_the_last_block_and_reports_its_number(name: kernels.CodecName) -> None:
    codec = kernels.codec(name, 64)
    gradient = np.zeros(NUMEL - LAST_SHARE, np.float32)
    gradient[-1] = -3.0
    update = of_the_tail(codec, gradient)
    codec.check(update, NUMEL)
    assert codec.peak(update, NUMEL) == pytest.approx(3.0)
    memoryview(update)[codec.encoded_bytes(NUMEL - 64) :][:4] = np.float32(np.nan).tobytes()
    with pytest.raises(kernels.BadScale) as caught:
        codec.check(update, NUMEL)
    assert caught.value.block == NUMEL // 64 - 1


def test_last_piece_is_copied_before_a_write_from_the_right_offset(state: OuterState) -> None:
    regions = [state.theta_vector.bytes_view, memoryview(state.momentum.data).cast("B")]
    state.momentum[-1] = 5.0
    copies = list[tuple[int, Bytes]]()

    def copy(to: Bytes, source: Bytes) -> None:
        np.copyto(to, source)
        copies.append((source.ctypes.data, to))

    with closing(Frozen(regions, CHUNK_BYTES, copy)) as frozen:
        frozen.before_write(1, 4 * LAST_SHARE, 4 * NUMEL)
        state.momentum[-1] = 6.0
        assert frozen.copied == 1
        ((start, last_piece),) = copies
        assert start == state.momentum.ctypes.data + 4 * NUMEL // CHUNK_BYTES * CHUNK_BYTES
        assert last_piece.view(np.float32)[-1] == 5.0


class Sparse(BlobReader):
    """A store with one snapshot, with zeros everywhere except in two chunks: the last chunk, and
    the chunk that holds the end of θ and the beginning of m.
    """

    def __init__(self) -> None:
        count = -(-8 * NUMEL // CHUNK_BYTES)
        self.across = 4 * NUMEL // CHUNK_BYTES
        named = [digest_of(b"%d" % n) for n in (0, 1, 2)]
        chunks = [named[0]] * count
        chunks[self.across], chunks[-1] = named[1:]
        meta = {"numel": NUMEL}
        self._manifest = BlobManifest(SNAPSHOT, 8 * NUMEL, CHUNK_BYTES, tuple(chunks), meta)

    def manifest(self, digest: Digest) -> BlobManifest:
        return self._manifest

    def has_chunk(self, digest: Digest) -> bool:
        return True

    def get_chunk(self, digest: Digest) -> bytes:
        raise AssertionError("chunks must be read directly into θ and m")

    def read_blob(self, digest: Digest) -> bytes:
        raise AssertionError("the whole snapshot must not be held in memory")

    def _read_into(self, digest: Digest, view: memoryview) -> None:
        if digest != self._manifest.chunks[0]:
            view[:] = np.arange(len(view) // 4, dtype=np.uint32).tobytes()


def test_snapshot_is_loaded_to_the_right_offsets_across_theta_and_m(state: OuterState) -> None:
    sparse = Sparse()
    manifest = state.load_snapshot(sparse, digest_of(b"any"))
    elements = CHUNK_BYTES // 4
    start = sparse.across * elements
    across = np.concatenate([state.theta[start:], state.momentum[: start + elements - NUMEL]])
    assert across.tobytes() == np.arange(elements, dtype=np.uint32).tobytes()
    length = manifest.chunk_size(len(manifest.chunks) - 1) // 4
    assert length == 2 * NUMEL % elements
    assert state.momentum[-length:].tobytes() == np.arange(length, dtype=np.uint32).tobytes()
    assert not state.theta[-elements - 4096 - 1 : start].any()


def test_layout_places_parameters_beyond_two_to_the_31() -> None:
    layout = Layout.of([("a", (2**16, 2**15)), ("b", (3, 5)), ("c", (2**20, 2**12))])
    assert [entry.offset for entry in layout.entries] == [0, 2**31, 2**31 + 16]
    assert layout.numel == 2**31 + 16 + 2**32
    assert Layout.from_wire(layout.to_wire()) == layout
