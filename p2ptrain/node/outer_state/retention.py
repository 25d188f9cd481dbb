"""Remove the blobs and chunks that this node does not have to keep.

A node keeps the newest certified snapshots and every update since the oldest of them. A newcomer
needs a snapshot and the updates after it, and a peer that was away needs the updates that it
missed. Perhaps this node lacks the certified snapshots, and the peers that wrote them are gone. So
it also keeps the newest snapshot that it has, with the updates since, until a newer one arrives.
It keeps data blocks up to a size limit, those needed soonest first, and its own contributions for
two outer steps, so that other members can check the averages. A seed (a node that preserves the
run) keeps all data and, if its disk has room, the genesis snapshot and every update
(`full_history`).

`kept` makes the choice. The store guarantees that a crash, or a simultaneous write, never causes
the loss of anything that is kept.
"""

from __future__ import annotations

import shutil
from functools import partial

import trio

from p2ptrain.archive.full_history import held_history
from p2ptrain.errors import ChunkCorrupt, TryLater
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.node.outer_state.kept import roots
from p2ptrain.node.outer_state.scrub import repair
from p2ptrain.node.outer_state.snapshot_choice import all_starts, newest_held
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import RootsDamaged

WARNING = "garbage"
HISTORY_WARNING = "history"

AGAIN_S = 60.0
"""Seconds after which garbage collection is tried again if damaged blobs prevented it. A try is
cheap: it reads only each kept blob's list of chunks. A user who has just unpinned the damaged blob
may be waiting for free space."""


CLAIM_STEPS = 8
"""In a run with claims, collect garbage at least once in this many outer steps. Until then, expired
contributions and single chunks of other peers' contributions take up space."""


async def keep_store_small(context: Context, *, again_s: float = AGAIN_S) -> None:
    """Collect garbage after each newly certified snapshot, and in a run with claims also between
    snapshots that are far apart, unless this node keeps everything.

    Raises StoreError: the store cannot take a repaired chunk."""
    if context.config.keep_snapshots is None:
        return
    collected_at: SnapshotRef | None = None
    collected_step = context.ledger.snapshot.step
    while True:
        newest, step = context.ledger.snapshot.snapshot, context.ledger.snapshot.step
        many = context.ledger.rules.claims and step >= collected_step + CLAIM_STEPS
        if not (many or newest not in (None, collected_at)) or not context.at_head():
            await context.changes.wait_calmly()
        elif damaged := await collect(context):
            await _fetch_damaged_roots(context, damaged)
            await trio.sleep(again_s)
        else:
            collected_at, collected_step = newest, step


async def collect(context: Context) -> RootsDamaged | None:
    """Collect garbage once. If roots (blobs that must be kept) are damaged, remove nothing and
    return the error that names them: it is not known which chunks they consist of."""
    assert context.blobs.data is not None, "the data index arrives before the head is reached"
    starts = all_starts(
        context.store, context.ledger.core, context.ledger.origin, context.manifest.genesis
    )
    held = await trio.to_thread.run_sync(newest_held, context.store, starts)
    history = await trio.to_thread.run_sync(_history, context) if context.config.seed else ()
    needed = roots(
        context.manifest, context.ledger.core, context.blobs.data, context.config, held, history
    )
    claims = context.trainer.claims
    own = () if claims is None else claims.contributions(context.ledger.snapshot.step)
    lent = context.sharing.kept(context.now())
    keep = (*needed.blobs, *own, *context.blobs.in_flight, *lent)
    work = partial(context.store.collect_garbage, keep, keep_chunks=needed.chunks)
    try:
        collected = await trio.to_thread.run_sync(work)
    except (ChunkCorrupt, TryLater) as exc:
        # Nothing was removed. The caller fetches damaged roots again before the next collection.
        if isinstance(exc, ChunkCorrupt) and WARNING not in context.alerts:
            context.blobs.ask_scrub()  # If one chunk is damaged, other chunks may be too.
        context.journal.write("not-collected", code=exc.code, reason=exc.what)
        return exc if isinstance(exc, RootsDamaged) else None
    context.alerts.clear(WARNING)
    context.journal.write("collected", chunks=collected.chunks, bytes=collected.bytes_freed)
    context.changes.notify_all()
    return None


def _history(context: Context) -> tuple[Digest, ...]:
    """Return the blobs that this seed keeps for replays from genesis. Warn the user if the disk
    does not have room for all. This call blocks; run it in a thread."""
    found = held_history(
        context.store,
        context.manifest,
        context.ledger.kept,
        disk_free=shutil.disk_usage(context.home.root).free,
        snapshot_bytes=8 * context.layout.numel,
    )
    if found.caution is None:
        context.alerts.clear(HISTORY_WARNING)
    elif HISTORY_WARNING not in context.alerts:
        context.alerts.show(HISTORY_WARNING, found.caution)
        context.journal.write("history-cut", reason=found.caution.what)
    return found.blobs


async def _fetch_damaged_roots(context: Context, damaged: RootsDamaged) -> None:
    """Fetch damaged roots again, and warn the user if no peer has them. While the user is warned,
    `scrub` asks for them, unless scrubbing is off. Until they are repaired or unpinned, the store
    can only grow."""
    left: RootsDamaged | None = damaged
    if WARNING not in context.alerts or context.config.scrub_bytes_per_s is None:
        left = damaged.without(await repair(context, damaged.roots))
    if left is not None:
        context.alerts.show(WARNING, Caution(left.code, left.what, left.remedy(context.home.root)))
        context.changes.notify_all()
