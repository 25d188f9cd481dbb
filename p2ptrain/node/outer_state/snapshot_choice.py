"""List the snapshots that θ and m can start from, and which snapshots and updates are already here.

`start` chooses the best snapshot, `outer_task` loads it, and `retention` keeps what a start needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import trio

from p2ptrain.archive.chain_log import Origin
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.kept_chain import CommittedUpdate
from p2ptrain.node.outer_state import state_mismatch, update_blobs
from p2ptrain.node.outer_state.start import Here, Start, choose_start
from p2ptrain.node.state.context import Parts
from p2ptrain.state.outer_state import SNAPSHOT
from p2ptrain.store import Head, Store

FETCHED_MAX = 3
"""Number of newest certified snapshots that are candidates for a fetch. Other peers keep about two,
and the peers that wrote the newest may be offline: a certificate proves a digest, but not that a
peer still has the bytes.
"""


def own_start(store: Store, ledger: Ledger, origin: Origin | None) -> Start | None:
    """Return the snapshot that our head names, if it belongs to the current chain."""
    head = store.head()
    if head is None or head.run != ledger.rules.run:
        return None
    if head.snapshot is None or head.snapshot_step is None:
        return None
    start = Start(head.snapshot_step, head.snapshot)
    return start if _is_ours(ledger, origin, head, start) else None


def _is_ours(ledger: Ledger, origin: Origin | None, head: Head, start: Start) -> bool:
    """Return whether the state of a head belongs to the current chain.

    It does not if the ledger was lost, or if the user entered a checkpoint of another line. It also
    does not if a different snapshot of that step was certified, and the node ended before it could
    correct its own.
    """
    kept = ledger.kept
    if state_mismatch.is_certified_otherwise(kept.entries, start.step, start.digest):
        return False
    if head.height > kept.start.height:
        entry = kept.at(head.height)
        return entry is not None and entry.entry.digest == head.head
    return origin is None or origin.trusted is None


def certified_starts(ledger: Ledger, genesis: Digest) -> list[Start]:
    """Return the certified snapshots that the kept chain names, newest first, with genesis last."""
    values = [each.entry.value for each in ledger.kept.entries]
    refs = [value.snapshot for value in values if isinstance(value, Commit) and value.snapshot]
    return [*(Start(each.step, each.digest) for each in reversed(refs)), Start(0, genesis)]


def all_starts(store: Store, ledger: Ledger, origin: Origin | None, genesis: Digest) -> list[Start]:
    """Return our own snapshot, if any, and the certified ones."""
    own = own_start(store, ledger, origin)
    return [*([own] if own else []), *certified_starts(ledger, genesis)]


def newest_held(store: Store, starts: Iterable[Start]) -> Start | None:
    """Return the newest of `starts` that is complete in the store: a restart can begin with it."""
    ordered = sorted(starts, key=lambda each: -each.step)
    return next((each for each in ordered if _holds(store, each.digest)), None)


def _holds(store: Store, digest: Digest) -> bool:
    """Return whether the blob is here and is a snapshot. Liars may have had the digest of a
    different blob certified.
    """
    try:
        return store.manifest(digest).kind == SNAPSHOT and store.holds_blob(digest)
    except (ChunkMissing, ChunkCorrupt, ManifestInvalid):
        return False


async def look(parts: Parts) -> Here:
    """Return which snapshots and updates are here now."""
    ledger = parts.ledger
    *certified, genesis = certified_starts(ledger, parts.manifest.genesis)
    own = own_start(parts.store, ledger, parts.origin)
    one_of_each = ([own] if own else [], certified, [genesis])
    known = range(ledger.kept.start.step, ledger.state.step)
    committed = dict(ledger.kept.updates)
    return await trio.to_thread.run_sync(_look, parts.store, one_of_each, known, committed)


def _look(
    store: Store,
    kinds: Iterable[Iterable[Start]],
    known: Iterable[int],
    committed: Mapping[int, CommittedUpdate],
) -> Here:
    """Find the newest stored snapshot of each kind, and the stored updates. A newer snapshot is
    always better than an older one.

    An update counts as stored once its manifest is here. That is enough to choose a start.
    """
    newest = [newest_held(store, kind) for kind in kinds]
    steps = (
        step for step in known if step not in committed or store.has_chunk(committed[step].update)
    )
    return Here(frozenset(each.digest for each in newest if each), frozenset(steps))


def best_start(
    parts: Parts, here: Here, without: Collection[Digest] = (), first_step: int = 0
) -> Start | None:
    """Return the cheapest start for reaching the head with the kept chain; None if there is none.

    Candidates are our own snapshot, the newest certified ones, older ones that are stored here, and
    genesis. Those before `first_step` are excluded.
    """
    ledger = parts.ledger
    *certified, genesis = certified_starts(ledger, parts.manifest.genesis)
    held = [each for each in certified[FETCHED_MAX:] if each.digest in here.snapshots]
    own = own_start(parts.store, ledger, parts.origin)
    starts = [*([own] if own else []), *certified[:FETCHED_MAX], *held, genesis]
    return choose_start(
        target_step=ledger.state.step,
        starts=[each for each in starts if each.digest not in without],
        here=here,
        snapshot_bytes=8 * parts.layout.numel,
        update_bytes=update_blobs.payload_bytes_about(parts),
        first_step=max(first_step, ledger.kept.start.step),
    )
