"""The digests of a run's data blocks, in the order of the block numbers that the ledger uses.

The index is stored as one blob of kind "index", and the manifest contains the blob's digest. So a
peer that knows the manifest's digest can verify all data without trusting anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import ManifestInvalid
from p2ptrain.ids import Digest, is_digest

KIND = "index"
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class DataIndex:
    """The digest of each block. Training block number b is `train[b % len(train)]`: after the last
    block, the data are used again from the first one."""

    train: tuple[Digest, ...]
    validation: tuple[Digest, ...]

    def __post_init__(self) -> None:
        assert all(is_digest(block) for block in (*self.train, *self.validation))

    def to_bytes(self) -> bytes:
        """Return all digests, concatenated, training blocks first."""
        return bytes.fromhex("".join((*self.train, *self.validation)))

    @classmethod
    def from_bytes(cls, data: bytes, *, train_blocks: int, validation_blocks: int) -> DataIndex:
        """Return the index in `data`; the manifest gives the counts.

        Raises ManifestInvalid: the length does not fit the counts.
        """
        if len(data) != (train_blocks + validation_blocks) * DIGEST_BYTES:
            raise ManifestInvalid(
                f"a data index of {len(data)} bytes does not list {train_blocks} training "
                f"and {validation_blocks} validation blocks"
            )
        starts = range(0, len(data), DIGEST_BYTES)
        digests = [Digest(data[start : start + DIGEST_BYTES].hex()) for start in starts]
        return cls(tuple(digests[:train_blocks]), tuple(digests[train_blocks:]))
