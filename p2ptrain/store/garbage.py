"""Find the chunks that a set of roots reaches, and remove all others.

A root is a blob, which reaches the chunks in its manifest, or a bare chunk, which reaches only
itself. References inside chunks are not followed: an index of data blocks does not keep the blocks.

If a manifest cannot be read, we cannot tell which chunks belong to it. So nothing is removed while
a root is damaged.

The module does not decide what to keep; `Store.collect_garbage` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.store.blob import START_BYTES, BlobManifest, looks_like_manifest
from p2ptrain.store.objects import Objects
from p2ptrain.suggested_command import to_paste


@dataclass(frozen=True, slots=True)
class Collected:
    """The number of chunks that a garbage collection removed and left, and the bytes it freed."""

    chunks: int
    bytes_freed: int
    chunks_left: int


class RootsDamaged(ChunkCorrupt):
    """These `roots` are damaged, so we do not know what they reach. The store's owner can give up
    those that are `pinned` by unpinning them.
    """

    def __init__(self, roots: Collection[Digest], pinned: Collection[Digest]) -> None:
        self.roots, self.pinned = sorted(roots), sorted(pinned)
        others = f" (and {len(roots) - 1} more)" if len(roots) > 1 else ""
        super().__init__(
            "garbage collection is suspended, so this store grows: "
            f"{self.roots[0]}{others} must be kept but is damaged, so the chunks that belong "
            "to it are unknown",
            evidence=[f"chunk {root}" for root in self.roots],
            likely="the disk that holds the store is faulty",
            do="fetch it again from a peer that has it, or unpin it if it is pinned",
        )

    def remedy(self, home: Path) -> str:
        """Return advice for the owner of the node in `home`."""
        otherwise = "or wait: the node drops the blob once newer snapshots are certified"
        if self.pinned:
            unpin = to_paste(home, f"store unpin {self.pinned[0]}")
            otherwise = f"or {unpin}, if you can do without it"
        repair = to_paste(home, "store check --repair")
        return f"{repair}, while a peer that has this blob is connected; {otherwise}"

    def without(self, mended: Collection[Digest]) -> RootsDamaged | None:
        """Return the error for the roots that are still damaged; None if all are repaired."""
        left = set(self.roots).difference(mended)
        return RootsDamaged(left, left.intersection(self.pinned)) if left else None


def reached_from(
    objects: Objects, roots: Iterable[Digest], pinned: Collection[Digest] = ()
) -> set[Digest]:
    """Return the roots, whether stored or not, and what they reach. `pinned` are also roots.

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
    """Return what a root reaches. Hash the root first, because a damaged manifest would not list
    its chunks. Raises ChunkCorrupt.
    """
    with suppress(ChunkMissing):
        objects.read_chunk(root)
    reached = _reached_by(objects, root)
    # Check this last, because another reader may have set the root aside meanwhile.
    if objects.is_set_aside(root):
        raise ChunkCorrupt(f"chunk {root} was set aside")
    return reached


def reached_from_young(objects: Objects, young: Iterable[Digest]) -> set[Digest]:
    """Return what recently stored chunks reach. Unlike roots, they are not hashed, because they may
    be a whole snapshot.
    """
    return set().union(*(_reached_by(objects, digest) for digest in young))


def sweep(objects: Objects, reached: set[Digest]) -> Collected:
    """Remove the chunks that are neither in `reached` nor recently put."""
    freed = [objects.remove_unless(reached, digest) for digest in objects]
    removed = [size for size in freed if size is not None]
    return Collected(len(removed), sum(removed), len(freed) - len(removed))


def _reached_by(objects: Objects, digest: Digest) -> set[Digest]:
    if looks_like_manifest(objects.start(digest, START_BYTES)):
        # The chunk may be a data chunk that only begins like a manifest, or another reader may have
        # set it aside meanwhile.
        with suppress(ManifestInvalid, ChunkMissing):
            return {digest, *BlobManifest.from_wire(objects.read_chunk(digest)).chunks}
    return {digest}
