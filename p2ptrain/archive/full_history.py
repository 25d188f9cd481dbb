"""Decide whether a seed has everything that a replay from genesis needs, and room to keep it.

Anybody can replay a run from genesis and compare the result with each certified snapshot, as long
as somebody has the genesis snapshot and every update. With int8 an update takes a byte per
parameter, which is too much for volunteers. Seeds keep all updates until their disk is nearly full,
and report when they can no longer keep them.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import RunManifest
from p2ptrain.store import Store

ROOM_SNAPSHOTS = 3
"""Number of snapshots that must still fit in addition to the history. The next snapshot is written
before the oldest is removed, and updates and data grow until then.
"""

ROOM_BYTES_MIN = 256 * 2**20
"""Minimum disk space in bytes that must stay free for logs and journals, for a model of any
size.
"""


@dataclass(frozen=True, slots=True)
class ReplayBlobs:
    """The blobs that a seed keeps for replays from genesis. If it cannot keep all of them, `blobs`
    is empty and `caution` gives the reason.
    """

    blobs: tuple[Digest, ...]
    caution: Caution | None


def held_history(
    store: Store, manifest: RunManifest, chain: KeptChain, *, disk_free: int, snapshot_bytes: int
) -> ReplayBlobs:
    """Decide which blobs of its run's history a seed keeps.

    If an update is missing, a replay from genesis is impossible here, so the other updates are not
    kept for replays either. `disk_free` and `snapshot_bytes` are in bytes. This function blocks: it
    reads the disk.
    """
    if chain.base is not None:
        return _cut("this seed deletes old entries of its ledger (--keep-entries)")
    if not store.holds_blob(manifest.genesis):
        return _cut("the genesis snapshot is not stored here")
    for step, committed in sorted(chain.updates.items()):
        if not store.has_chunk(committed.update):
            return _cut(f"the update of outer step {step} is not stored here")
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


DO = "run `verify` on a seed that has been running since the start, or --from a later snapshot"
