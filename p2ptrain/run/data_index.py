"""The digests of a run's data blocks, in the order that leases count them.

It is stored as one blob of kind "index", named by the manifest, and never read from anywhere else:
who has the manifest's digest needs to trust nobody about the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import ManifestInvalid
from p2ptrain.ids import Digest, is_digest

KIND = "index"
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class DataIndex:
    """Each block's digest. A lease's block b is `train[b % len(train)]`."""

    train: tuple[Digest, ...]
    validation: tuple[Digest, ...]

    def __post_init__(self) -> None:
        assert all(is_digest(block) for block in (*self.train, *self.validation))

    def to_bytes(self) -> bytes:
        """All digests, one after the other, training blocks first."""
        return bytes.fromhex("".join((*self.train, *self.validation)))

    @classmethod
    def from_bytes(cls, data: bytes, *, train_blocks: int, validation_blocks: int) -> DataIndex:
        """The index in `data`, for the counts that the manifest gives.

        Raises:
            ManifestInvalid: the length does not fit the counts.
        """
        if len(data) != (train_blocks + validation_blocks) * DIGEST_BYTES:
            raise ManifestInvalid(
                f"a data index of {len(data)} bytes does not list {train_blocks} training "
                f"and {validation_blocks} validation blocks"
            )
        digests = [
            Digest(data[start : start + DIGEST_BYTES].hex())
            for start in range(0, len(data), DIGEST_BYTES)
        ]
        return cls(tuple(digests[:train_blocks]), tuple(digests[train_blocks:]))
