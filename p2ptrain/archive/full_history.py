"""Decide whether a seed holds, and can go on holding, everything that a replay from genesis needs.

Anybody may replay a run from genesis and compare the result with each certified snapshot, if
somebody still has the genesis snapshot and every update. With int8 an update takes a byte for each
parameter. Volunteers need not have that much room. Seeds keep these bytes until their disk is
nearly full, and report it as soon as they cannot keep them any longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import RunManifest
from p2ptrain.store import Store

ROOM_SNAPSHOTS = 3
"""Snapshots that must still fit beside the history: the next one is written before the oldest is
removed, and updates and data grow until then.
"""

ROOM_BYTES_MIN = 256 * 2**20
"""Room that logs and journals need on the same disk, whatever the size of the model."""


@dataclass(frozen=True, slots=True)
class ReplayBlobs:
    """The blobs to keep for a replay from genesis: all of them, or none and the reason
    (`caution`).
    """

    blobs: tuple[Digest, ...]
    caution: Caution | None


def held_history(
    store: Store, manifest: RunManifest, chain: KeptChain, *, disk_free: int, snapshot_bytes: int
) -> ReplayBlobs:
    """Decide what a seed keeps of its run's history.

    If one of the updates is missing, a replay from genesis is impossible here, so the others are
    not kept for that purpose. `disk_free` and `snapshot_bytes` are in bytes. This function reads
    the disk and blocks.
    """
    if chain.base is not None:
        return _cut("this seed drops old entries of its ledger (--keep-entries)")
    if not store.holds_blob(manifest.genesis):
        return _cut("the genesis snapshot is not held here")
    for step, committed in sorted(chain.updates.items()):
        if not store.has_chunk(committed.update):
            return _cut(f"the update of outer step {step} is not held here")
    needed = max(ROOM_BYTES_MIN, ROOM_SNAPSHOTS * snapshot_bytes)
    if disk_free < needed:
        return _cut(
            f"{disk_free / 1e9:.1f} GB of disk are free, but the run needs "
            f"{needed / 1e9:.1f} GB, so old updates are removed"
        )
    updates = (chain.updates[step].update for step in sorted(chain.updates))
    return ReplayBlobs((manifest.genesis, *updates), None)


def _cut(reason: str) -> ReplayBlobs:
    what = f"this seed lacks data that a replay of the run from its genesis needs: {reason}"
    return ReplayBlobs((), Caution("HISTORY-CUT", what, DO))


DO = "verify at a seed that has run since the beginning, or replay from a later snapshot"
