"""The replicated state: parameters θ and outer momentum m, advanced by committed updates only.

The state is bit-identical on all peers. An update is a payload of blocks, and one elementwise
kernel applies it, so the result does not depend on the number of threads or the order of their
work.

A snapshot is θ followed by m, as one blob. Its `meta` is derived only from the ledger, so that
equal states have equal digests on all peers and the ledger can certify them.

This module does not know why an update is applied, or whether it was certified.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
from blake3 import blake3

from p2ptrain.errors import LocalProtocolError, ManifestInvalid
from p2ptrain.ids import Digest, RunId
from p2ptrain.kernels import Codec
from p2ptrain.state.frozen import Frozen
from p2ptrain.state.shared_vector import BYTES_PER_ELEMENT, Float32Vector, SharedVector
from p2ptrain.store import BlobManifest, BlobReader, IdleThrottle, Store, describe
from p2ptrain.sync.fragments import Fragment

SNAPSHOT = "snapshot"

SHARE_ELEMENTS = 2**20
"""Elements that one thread updates at a time: 4 MiB each of θ and m. A snapshot's chunks have the
same length, so at most one chunk of each is copied at a time."""

THREADS_MAX = 4
"""Maximum number of threads. Memory bandwidth limits the kernel, so more threads are not faster,
and they slow down the trainer."""


def snapshot_meta(run: RunId | None, step: int, layout: Digest) -> dict[str, object]:
    """Return a snapshot's `meta`. The `run` is None for the genesis snapshot: the run's id depends
    on the digest of that snapshot, so the snapshot cannot contain the id.
    """
    named = {} if run is None else {"run": run}
    return {**named, "step": step, "layout": layout}


class OuterState:
    """θ and m, `numel` float32 elements each, initially zero.

    `theta` and `momentum` are numpy views of shared memory. The trainers map `theta_vector`. One
    update or load runs at a time; a second one waits. A snapshot can be written while an update
    runs. `threads` threads update θ and m, each `share_elements` elements at a time.
    """

    def __init__(
        self, numel: int, *, threads: int | None = None, share_elements: int = SHARE_ELEMENTS
    ) -> None:
        self.numel = numel
        self._share_elements = share_elements
        self.theta_vector = SharedVector(numel, name="p2ptrain-theta")
        self._momentum = SharedVector(numel, name="p2ptrain-momentum")
        self.theta, self.momentum = self.theta_vector.array, self._momentum.array
        self._threads = threads or min(THREADS_MAX, os.cpu_count() or 1)
        # Held while θ and m change, and at the instant of a freeze.
        self._changing = threading.Lock()
        self._frozen: Frozen | None = None

    def close(self) -> None:
        """Release the descriptors. The memory is freed when no process uses it any more."""
        self.theta_vector.close()
        self._momentum.close()

    def apply(
        self,
        payload: bytes | memoryview,
        lr: float,
        mu: float,
        codec: Codec,
        fragment: Fragment | None = None,
    ) -> None:
        """Apply an update: m ← μ m + Δ, θ ← θ − lr (Δ + μ m), where Δ is the pseudo-gradient in
        `payload`.

        `payload` is the whole update of `fragment`, or of the whole model if `fragment` is None. It
        has exactly `codec.encoded_bytes(fragment.numel)` bytes. The rest of θ and m does not
        change.

        Raises ValueError for a wrong length, and kernels.BadScale for an invalid payload. In both
        cases θ and m are unchanged.
        """
        fragment = fragment or Fragment(((0, self.numel),))
        if len(payload) != codec.encoded_bytes(fragment.numel):
            raise ValueError(
                f"{len(payload)} bytes are not an update of {fragment.numel} parameters"
            )
        codec.check(payload, fragment.numel)
        view = memoryview(payload)
        with self._changing:
            share = partial(self._apply_share, view, lr, mu, codec, self._frozen, fragment)
            starts = range(0, fragment.numel, self._share(codec.block))
            with ThreadPoolExecutor(self._threads, "outer-step") as pool:
                deque(pool.map(share, starts), maxlen=0)  # raises the error of a share

    def _share(self, block: int) -> int:
        """Return a number of whole blocks, so that every share starts at a block's scale."""
        return max(self._share_elements // block, 1) * block

    def _apply_share(
        self,
        payload: memoryview,
        lr: float,
        mu: float,
        codec: Codec,
        frozen: Frozen | None,
        fragment: Fragment,
        start: int,
    ) -> None:
        stop = min(start + self._share(codec.block), fragment.numel)
        pieces = fragment.pieces(start, stop)
        if frozen is not None:
            for region in (0, 1):
                for first, last in pieces:
                    frozen.before_write(region, first * BYTES_PER_ELEMENT, last * BYTES_PER_ELEMENT)
        encoded = payload[codec.encoded_bytes(start) : codec.encoded_bytes(stop)]
        if len(pieces) == 1:
            first, last = pieces[0]
            codec.outer_step(
                self.theta[first:last].data, self.momentum[first:last].data, encoded, lr, mu
            )
            return
        # A codec block may span two pieces, so copy the pieces into one array.
        share = Fragment(tuple(pieces))
        theta, momentum = (np.empty(stop - start, np.float32) for _ in range(2))
        share.gather(self.theta, theta)
        share.gather(self.momentum, momentum)
        codec.outer_step(theta.data, momentum.data, encoded, lr, mu)
        share.scatter(theta, self.theta)
        share.scatter(momentum, self.momentum)

    def digest(self) -> Digest:
        """Return the blake3 digest of θ and m. It is equal on all peers that applied the same
        entries.
        """
        with self._changing:
            hasher = blake3()
            for vector in (self.theta_vector, self._momentum):
                hasher.update(vector.bytes_view)
            return Digest(hasher.hexdigest())

    @contextmanager
    def freeze(self, piece_bytes: int) -> Iterator[Frozen]:
        """Freeze θ and m at this instant, to be read piece by piece while updates continue.

        The caller must make sure that no unwanted update is applied before the block is entered.
        Another thread should read the view, because that can take seconds.

        Raises LocalProtocolError if a frozen view already exists: there can be one at a time.
        """
        with self._changing:
            if self._frozen is not None:
                raise LocalProtocolError("a snapshot is already being written")
            regions = [self.theta_vector.bytes_view, self._momentum.bytes_view]
            self._frozen = frozen = Frozen(regions, piece_bytes)
        try:
            yield frozen
        finally:
            # Close the view before taking the lock: an update that waits for a piece holds the
            # lock.
            frozen.close()
            with self._changing:
                self._frozen = None

    def write_snapshot(self, store: Store, meta: Mapping[str, object]) -> Digest:
        """Store the current state; return the snapshot's digest. Updates may continue meanwhile.

        `meta` must be equal on all peers, because the digest depends on it.

        Raises StoreFull, and LocalProtocolError if a snapshot is already being written.
        """
        with self.freeze(store.chunk_bytes) as frozen:
            return write_frozen(store, frozen, self.numel, meta)

    def describe(self, chunk_bytes: int, meta: Mapping[str, object]) -> BlobManifest:
        """Return the manifest of a snapshot of the current state. Nothing is stored."""
        with self._changing:
            regions = (self.theta_vector.bytes_view, self._momentum.bytes_view)
            return describe(SNAPSHOT, regions, chunk_bytes, {"numel": self.numel, **meta})

    def check_manifest(self, store: BlobReader, digest: Digest) -> None:
        """Check that a blob has a snapshot's kind and size. Only its manifest needs to be stored.

        Raises ManifestInvalid, and ChunkMissing or ChunkCorrupt for the manifest itself.
        """
        manifest, size = store.manifest(digest), 2 * self.numel * BYTES_PER_ELEMENT
        if manifest.kind != SNAPSHOT or manifest.size != size:
            raise ManifestInvalid(
                f"{digest} is a {manifest.kind} of {manifest.size} bytes, not a snapshot of {size}"
            )

    def load_snapshot(self, store: BlobReader, digest: Digest) -> BlobManifest:
        """Set θ and m to a snapshot that is completely stored; return its manifest.

        Raises ChunkMissing or ChunkCorrupt. In these cases θ and m hold a mixture: fetch the
        missing chunks and load again. Raises ManifestInvalid, without changing anything, if the
        blob is not a snapshot with `numel` parameters.
        """
        self.check_manifest(store, digest)
        with self._changing:
            if self._frozen is not None:
                raise LocalProtocolError(
                    "cannot load a snapshot while another one is being written"
                )
            return store.read_blob_into(
                digest, self.theta_vector.bytes_view, self._momentum.bytes_view
            )


def write_frozen(
    store: Store,
    frozen: Frozen,
    numel: int,
    meta: Mapping[str, object],
    *,
    throttle: IdleThrottle | None = None,
) -> Digest:
    """Store a frozen state, from any thread; return the snapshot's digest.

    With `throttle`, the writing threads yield the CPU to other threads, such as a trainer's.
    """
    return store.put_stream(SNAPSHOT, frozen.fill, {"numel": numel, **meta}, throttle=throttle)


def write_state(
    store: Store, theta: Float32Vector, momentum: Float32Vector, meta: Mapping[str, object]
) -> Digest:
    """Store a snapshot of vectors that do not belong to an OuterState, such as a run's genesis."""
    parts = [np.ascontiguousarray(v).data.cast("B") for v in (theta, momentum)]
    return store.put_blob(SNAPSHOT, parts, {"numel": len(theta), **meta})
