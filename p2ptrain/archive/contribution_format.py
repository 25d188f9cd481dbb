"""A contribution as a blob: what an outer step's contribution of a peer must look like.

A claim names a contribution by the digest of this blob, so it binds every byte. The blob lists the
digests of its chunks, so anybody can check one chunk without the others. A chunk contains whole
blocks of the codec, because a block of the update depends on the same block of each contribution
and on nothing else.

The blob names its peer. So two peers never have the same contribution, and nobody can claim the
contribution of another peer. This module knows nothing about the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.archive.update_format import UpdateFormat
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.store import BlobReader, Store
from p2ptrain.store.blob import BlobManifest, Buffer

KIND = "contribution"

CHUNK_BYTES_MAX = 1 << 20
"""Maximum length of a chunk, unless one block is longer. In each outer step, a node fetches one
chunk of every participant's contribution: 62 MiB if 62 peers take part."""


@dataclass(frozen=True, slots=True)
class ContributionFormat:
    """The contribution of `peer` to the update `update`. `run_chunk_bytes` is the run's length of
    chunks, the maximum for a contribution's chunks too, unless a block is longer.
    """

    update: UpdateFormat
    peer: PeerId
    run_chunk_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """The length of a chunk, in bytes: a multiple of a block's length."""
        block_bytes = self.update.codec.encoded_bytes(self.update.spec.block)
        return max(1, min(CHUNK_BYTES_MAX, self.run_chunk_bytes) // block_bytes) * block_bytes

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return -(-self.update.payload_bytes // self.chunk_bytes)

    @property
    def meta(self) -> dict[str, object]:
        return {**self.update.meta, "peer": self.peer}

    def elements(self, chunk: int) -> tuple[int, int]:
        """Return the elements [start, stop) that chunk number `chunk` contains: whole blocks."""
        codec, block = self.update.codec, self.update.spec.block
        length = self.chunk_bytes // codec.encoded_bytes(block) * block
        return chunk * length, min(self.update.numel, (chunk + 1) * length)

    def write(self, store: Store, payload: Buffer) -> Digest:
        """Store the contribution durably and return its digest. Raises StoreError."""
        return store.put_blob(KIND, [payload], self.meta, chunk_bytes=self.chunk_bytes)

    def checked_manifest(self, blobs: BlobReader, digest: Digest) -> BlobManifest:
        """Return the blob's list of chunks.

        Raises:
            RemoteProtocolError: the blob is not a contribution of this peer to this update.
            StoreError: the list cannot be read.
        """
        return self.checked(blobs.manifest(digest))

    def checked(self, manifest: BlobManifest) -> BlobManifest:
        """Return `manifest`. Raises RemoteProtocolError: it is not that of a contribution of this
        peer to this update."""
        told = (manifest.kind, dict(manifest.meta), manifest.size, manifest.chunk_bytes)
        if told != (KIND, self.meta, self.update.payload_bytes, self.chunk_bytes):
            what = f"{manifest.digest[:12]} is not its contribution to outer step"
            raise RemoteProtocolError(f"{what} {self.update.step}", peer=self.peer)
        return manifest
