"""Find what a set of roots reaches, and remove everything else.

A root is a blob, which reaches the chunks that its manifest lists, or a bare chunk, which reaches
itself. The contents of chunks are never followed: an index of data blocks does not keep the blocks.

A manifest that cannot be read does not tell which chunks are its own, and these look like any
others. So nothing at all is removed while a root is damaged.

The module does not know who wants what kept; `Store.collect_garbage` decides that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.store.blob import BlobManifest, looks_like_manifest
from p2ptrain.store.objects import Objects
from p2ptrain.suggested_command import to_paste

_START_BYTES = 32


@dataclass(frozen=True, slots=True)
class Collected:
    """The number of chunks removed and left, and the bytes freed, by one garbage collection."""

    chunks: int
    bytes_freed: int
    chunks_left: int


class RootsDamaged(ChunkCorrupt):
    """It is unknown what these `roots` reach. The owner may give up those that are `pinned`."""

    def __init__(self, roots: Collection[Digest], pinned: Collection[Digest]) -> None:
        self.roots, self.pinned = sorted(roots), sorted(pinned)
        others = f" (and {len(roots) - 1} more)" if len(roots) > 1 else ""
        super().__init__(
            "nothing is removed from this store, which therefore grows: "
            f"{self.roots[0]}{others} must be kept but is damaged, so the chunks that belong "
            "to it are unknown",
            evidence=[f"chunk {root}" for root in self.roots],
            likely="the disk under the store has a fault",
            do="fetch it again from a peer that has it, or give it up",
        )

    def remedy(self, home: Path) -> str:
        """Return what the owner of the node in `home` can do."""
        otherwise = "blobs older than the newest certified snapshots are given up in time"
        if self.pinned:
            unpin = to_paste(home, f"store unpin {self.pinned[0]}")
            otherwise = f"or {unpin}, if you can do without it"
        repair = to_paste(home, "store check --repair")
        return f"{repair}, when a peer that has it is connected; {otherwise}"

    def without(self, mended: Collection[Digest]) -> RootsDamaged | None:
        """Return the error for the roots that are still damaged; None if there are none."""
        left = set(self.roots).difference(mended)
        return RootsDamaged(left, left.intersection(self.pinned)) if left else None


def reached_from(
    objects: Objects, roots: Iterable[Digest], pinned: Collection[Digest] = ()
) -> set[Digest]:
    """Return the roots, held or not, and what they reach; `pinned` are roots, too.

    Raises RootsDamaged.
    """
    reached, damaged = set[Digest](), set[Digest]()
    for root in (*roots, *pinned):
        try:
            reached |= _reached_by_root(objects, root)
        except ChunkCorrupt:
            damaged.add(root)
    if damaged:
        raise RootsDamaged(damaged, damaged.intersection(pinned))
    return reached


def _reached_by_root(objects: Objects, root: Digest) -> set[Digest]:
    """Return what a root reaches.
    Hash it first: a damaged manifest would hide its chunks. Raises ChunkCorrupt.
    """
    with suppress(ChunkMissing):
        objects.read_chunk(root)
    reached = _reached_by(objects, root)
    # Checked last: another reader may have set it aside meanwhile.
    if objects.is_set_aside(root):
        raise ChunkCorrupt(f"chunk {root} was set aside")
    return reached


def reached_from_young(objects: Objects, young: Iterable[Digest]) -> set[Digest]:
    """Return what very recent chunks reach, without hashing a whole snapshot again."""
    reached: set[Digest] = set()
    for digest in young:
        reached |= _reached_by(objects, digest)
    return reached


def sweep(objects: Objects, reached: set[Digest]) -> Collected:
    """Remove the chunks that are neither reached nor young."""
    freed = [objects.remove_unless(reached, digest) for digest in objects]
    removed = [size for size in freed if size is not None]
    return Collected(len(removed), sum(removed), len(freed) - len(removed))


def _reached_by(objects: Objects, digest: Digest) -> set[Digest]:
    if not looks_like_manifest(objects.start(digest, _START_BYTES)):
        return {digest}
    try:
        return {digest, *BlobManifest.from_wire(objects.read_chunk(digest)).chunks}
    except ManifestInvalid:
        return {digest}  # a data chunk that begins like a manifest
    except ChunkMissing:
        return {digest}  # another reader has set it aside meanwhile
