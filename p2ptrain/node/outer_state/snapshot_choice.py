"""Choose the snapshot from which a node reaches the ledger's newest state with the least download.

Such a snapshot is called a *start*. Its cost is the bytes that are not in the store: those of the
snapshot itself, and those of the updates of later outer steps. `outer_task` loads the chosen
snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import trio

from p2ptrain.archive.chain_log import Origin
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.node.outer_state import state_mismatch, update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.state.outer_state import SNAPSHOT
from p2ptrain.store import Head, Store

FETCHED_MAX = 3
"""Number of the newest certified snapshots that are considered for a download. Other peers keep
about two snapshots. One is not enough: its certificate proves its digest, but the peers that wrote
it may be offline, and perhaps no other peer has the bytes."""


@dataclass(frozen=True, slots=True)
class HeldStates:
    """The contents of the store: digests of snapshots, and the outer steps (`steps`) whose update
    is in the store or that were skipped."""

    snapshots: Collection[Digest] = frozenset()
    steps: Collection[int] = frozenset()


def choose_start(
    *,
    target_step: int,
    starts: Iterable[SnapshotRef],
    here: HeldStates,
    snapshot_bytes: int,
    update_bytes: int,
    first_step: int = 0,
) -> SnapshotRef | None:
    """Return the start from which `target_step` can be reached with the fewest downloaded bytes. If
    there are several, return the newest of them.

    Snapshots after `target_step` are not considered, since the ledger here does not reach them.
    Those before `first_step` are not considered either: a pruned ledger begins there, so the
    updates before it are not known."""

    def cost_bytes(start: SnapshotRef) -> int:
        fetched = 0 if start.digest in here.snapshots else snapshot_bytes
        after = range(start.step, target_step)
        return fetched + update_bytes * sum(step not in here.steps for step in after)

    reachable = [each for each in starts if first_step <= each.step <= target_step]
    return min(reachable, key=lambda each: (cost_bytes(each), -each.step), default=None)


def own_start(store: Store, ledger: Ledger, origin: Origin | None) -> SnapshotRef | None:
    """Return the snapshot that the store's head names (this node's newest complete one), if it
    belongs to the current chain."""
    head = store.head()
    if head is None or head.run != ledger.rules.run:
        return None
    if head.snapshot is None or head.snapshot_step is None:
        return None
    start = SnapshotRef(head.snapshot_step, head.snapshot)
    return start if _is_ours(ledger, origin, head, start) else None


def _is_ours(ledger: Ledger, origin: Origin | None, head: Head, start: SnapshotRef) -> bool:
    """Return whether the snapshot in the store's head belongs to the current chain.

    The snapshot does not belong to the chain if the ledger was lost, or if the user entered a
    checkpoint of another branch. Nor does it if the members certified a different snapshot of that
    step, and the node ended before it could correct its own."""
    kept = ledger.kept
    if state_mismatch.is_certified_otherwise(kept.entries, start.step, start.digest):
        return False
    if head.height > kept.start.height:
        entry = kept.at(head.height)
        return entry is not None and entry.entry.digest == head.head
    return origin is None or origin.trusted is None


def certified_starts(ledger: Ledger, genesis: Digest) -> list[SnapshotRef]:
    """Return the certified snapshots that the kept chain names, newest first, with genesis last."""
    values = [each.entry.value for each in ledger.kept.entries]
    refs = [value.snapshot for value in values if isinstance(value, Commit) and value.snapshot]
    return [*reversed(refs), SnapshotRef(0, genesis)]


def all_starts(
    store: Store, ledger: Ledger, origin: Origin | None, genesis: Digest
) -> list[SnapshotRef]:
    """Return our own snapshot, if there is one, and the certified ones."""
    own = own_start(store, ledger, origin)
    return [*([own] if own else []), *certified_starts(ledger, genesis)]


def newest_held(store: Store, starts: Iterable[SnapshotRef]) -> SnapshotRef | None:
    """Return the newest of `starts` that is complete in the store, for a restart."""
    ordered = sorted(starts, key=lambda each: -each.step)
    return next((each for each in ordered if _holds(store, each.digest)), None)


def _holds(store: Store, digest: Digest) -> bool:
    """Return whether the store contains the blob completely, and it is a snapshot. A quorum of
    liars can certify a digest that names something else."""
    try:
        return store.manifest(digest).kind == SNAPSHOT and store.holds_blob(digest)
    except (ChunkMissing, ChunkCorrupt, ManifestInvalid):
        return False


async def find_held_states(context: Context) -> HeldStates:
    """Return which snapshots and updates the store contains now."""
    ledger = context.ledger.core
    *certified, genesis = certified_starts(ledger, context.manifest.genesis)
    own = own_start(context.store, ledger, context.ledger.origin)
    kinds = ([own] if own else [], certified, [genesis])
    known, updates = range(ledger.kept.start.step, ledger.state.step), dict(ledger.kept.updates)
    has_chunk = context.store.has_chunk

    def find() -> HeldStates:
        # Of each kind, only the newest is useful. An update counts as held if its manifest is.
        newest = [newest_held(context.store, kind) for kind in kinds]
        steps = [each for each in known if each not in updates or has_chunk(updates[each].update)]
        return HeldStates(frozenset(each.digest for each in newest if each), frozenset(steps))

    return await trio.to_thread.run_sync(find)


def best_start(
    context: Context, here: HeldStates, without: Collection[Digest] = (), first_step: int = 0
) -> SnapshotRef | None:
    """Return the start from which the ledger's newest state can be reached with the fewest
    downloaded bytes; None if there is none.

    Candidates are our own snapshot, the newest certified ones, older certified ones that are in the
    store, and genesis. Snapshots before `first_step`, and those in `without`, are excluded. `here`:
    what the store contains."""
    ledger = context.ledger.core
    *certified, genesis = certified_starts(ledger, context.manifest.genesis)
    held = [each for each in certified[FETCHED_MAX:] if each.digest in here.snapshots]
    own = own_start(context.store, ledger, context.ledger.origin)
    starts = [*([own] if own else []), *certified[:FETCHED_MAX], *held, genesis]
    return choose_start(
        target_step=ledger.state.step,
        starts=[each for each in starts if each.digest not in without],
        here=here,
        snapshot_bytes=8 * context.layout.numel,
        update_bytes=update_blobs.payload_bytes_about(context),
        first_step=max(first_step, ledger.kept.start.step),
    )
