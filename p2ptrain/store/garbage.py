"""What a set of roots reaches, and the removal of everything else.

A root is a blob (it reaches the chunks that its manifest lists) or a bare chunk (it reaches
itself). The contents of chunks are never followed: an index of data blocks does not keep the
blocks.

It knows nothing of who wants what kept; `Store.collect_garbage` decides that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.store.blob import BlobManifest, looks_like_manifest
from p2ptrain.store.objects import Objects

_START_BYTES = 32


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage removed, and how much it left."""

    chunks: int
    bytes_freed: int
    chunks_left: int


def reached_from(objects: Objects, roots: Iterable[Digest]) -> set[Digest]:
    """The roots, held or not, and what they reach.

    Each root is hashed first, since a damaged manifest would hide its chunks.

    Raises ChunkCorrupt if a root is damaged.
    """
    reached: set[Digest] = set()
    for root in roots:
        with suppress(ChunkMissing):
            objects.read(root)
        reached |= _reached_by(objects, root)
        # Asked last: another reader may have set it aside meanwhile.
        if objects.is_set_aside(root):
            raise ChunkCorrupt(f"{root} is to be kept but damaged; fetch it again first")
    return reached


def reached_from_young(objects: Objects, young: Iterable[Digest]) -> set[Digest]:
    """The same for chunks written a moment ago: a whole snapshot of them is not hashed again."""
    reached: set[Digest] = set()
    for digest in young:
        reached |= _reached_by(objects, digest)
    return reached


def sweep(objects: Objects, reached: set[Digest]) -> Collected:
    """Remove what is neither reached nor young."""
    freed = [objects.remove_unless(reached, digest) for digest in objects]
    removed = [size for size in freed if size is not None]
    return Collected(len(removed), sum(removed), len(freed) - len(removed))


def _reached_by(objects: Objects, digest: Digest) -> set[Digest]:
    if not looks_like_manifest(objects.start(digest, _START_BYTES)):
        return {digest}
    try:
        return {digest, *BlobManifest.from_wire(objects.read(digest)).chunks}
    except ManifestInvalid:
        return {digest}  # a data chunk that begins like a manifest
    except ChunkMissing:
        return {digest}  # set aside since, by another reader
