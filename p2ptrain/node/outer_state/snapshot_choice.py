"""Choose the snapshot that brings a node to the ledger's head with the fewest bytes.

Only missing bytes cost anything: a snapshot that is not here, and the updates of the outer steps
after it that are not here. `outer_task` loads the chosen snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import trio

from p2ptrain.archive.chain_log import Origin
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.kept_chain import CommittedUpdate
from p2ptrain.node.outer_state import state_mismatch, update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.state.outer_state import SNAPSHOT
from p2ptrain.store import Head, Store

FETCHED_MAX = 3
"""Number of newest certified snapshots that are candidates for a fetch. Other peers keep about two,
and the peers that wrote the newest may be offline: a certificate proves a digest, but not that a
peer still has the bytes.
"""


@dataclass(frozen=True, slots=True)
class HeldStates:
    """The held snapshots, and the outer steps whose update is held or that have none."""

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
    """Return the start with the fewest bytes to `target_step`. If several starts have equally few
    bytes, return the newest.

    A snapshot after the target is useless, since the ledger here does not reach it. A snapshot
    before `first_step`, where a pruned ledger begins, is useless too, since the updates after it
    are not known.
    """

    def cost_bytes(start: SnapshotRef) -> int:
        fetched = 0 if start.digest in here.snapshots else snapshot_bytes
        after = range(start.step, target_step)
        return fetched + update_bytes * sum(step not in here.steps for step in after)

    reachable = [each for each in starts if first_step <= each.step <= target_step]
    return min(reachable, key=lambda each: (cost_bytes(each), -each.step), default=None)


def leap_pays(*, updates: int, snapshot_bytes: int, update_bytes: int) -> bool:
    """Return whether a snapshot has fewer bytes than the updates that lead to it from here."""
    return updates * update_bytes > snapshot_bytes


def own_start(store: Store, ledger: Ledger, origin: Origin | None) -> SnapshotRef | None:
    """Return the snapshot that our head names, if it belongs to the current chain."""
    head = store.head()
    if head is None or head.run != ledger.rules.run:
        return None
    if head.snapshot is None or head.snapshot_step is None:
        return None
    start = SnapshotRef(head.snapshot_step, head.snapshot)
    return start if _is_ours(ledger, origin, head, start) else None


def _is_ours(ledger: Ledger, origin: Origin | None, head: Head, start: SnapshotRef) -> bool:
    """Return whether the state of a head belongs to the current chain.

    The state does not belong to the chain if the ledger was lost, or if the user entered a
    checkpoint of another branch. Nor does it if a different snapshot of that step was certified,
    and the node ended before it could correct its own.
    """
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
    return [
        *(SnapshotRef(each.step, each.digest) for each in reversed(refs)),
        SnapshotRef(0, genesis),
    ]


def all_starts(
    store: Store, ledger: Ledger, origin: Origin | None, genesis: Digest
) -> list[SnapshotRef]:
    """Return our own snapshot, if any, and the certified ones."""
    own = own_start(store, ledger, origin)
    return [*([own] if own else []), *certified_starts(ledger, genesis)]


def newest_held(store: Store, starts: Iterable[SnapshotRef]) -> SnapshotRef | None:
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


async def find_held_states(context: Context) -> HeldStates:
    """Return which snapshots and updates are here now."""
    ledger = context.ledger.core
    *certified, genesis = certified_starts(ledger, context.manifest.genesis)
    own = own_start(context.store, ledger, context.ledger.origin)
    one_of_each = ([own] if own else [], certified, [genesis])
    known = range(ledger.kept.start.step, ledger.state.step)
    committed = dict(ledger.kept.updates)
    return await trio.to_thread.run_sync(
        _find_held_states, context.store, one_of_each, known, committed
    )


def _find_held_states(
    store: Store,
    kinds: Iterable[Iterable[SnapshotRef]],
    known: Iterable[int],
    committed: Mapping[int, CommittedUpdate],
) -> HeldStates:
    """Find the newest stored snapshot of each kind, and the stored updates. A newer snapshot is
    always better than an older one.

    An update counts as stored once its manifest is here. That is enough to choose a start.
    """
    newest = [newest_held(store, kind) for kind in kinds]
    steps = (
        step for step in known if step not in committed or store.has_chunk(committed[step].update)
    )
    return HeldStates(frozenset(each.digest for each in newest if each), frozenset(steps))


def best_start(
    context: Context, here: HeldStates, without: Collection[Digest] = (), first_step: int = 0
) -> SnapshotRef | None:
    """Return the cheapest start for reaching the head with the kept chain; None if there is none.

    Candidates are our own snapshot, the newest certified ones, older ones that are stored here, and
    genesis. Those before `first_step` are excluded.
    """
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
