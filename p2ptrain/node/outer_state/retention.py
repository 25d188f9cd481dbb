"""Decide what this node keeps for the run, and remove everything else.

A node keeps the newest certified snapshots and every update since the oldest of them. A newcomer
needs a snapshot and the updates after it, and a peer that was away needs the updates that it
missed. This node may not have the certified snapshots, and the peers that wrote them may be gone.
So it also keeps the newest snapshot that it has, with the updates since, until a newer one arrives.
It keeps data blocks up to a size limit, those needed soonest first. A seed exists to preserve
everything: it keeps all data and, if its disk has room, the genesis snapshot and every update
(`full_history`).

The choice is a pure function of the ledger, the options and the node's newest snapshot. The store
guarantees that kept blobs are not lost in a crash or a race.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from p2ptrain.archive.full_history import held_history
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ChunkCorrupt, TryLater
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Certified, Commit, SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.node.outer_state.scrub import repair
from p2ptrain.node.outer_state.snapshot_choice import all_starts, newest_held
from p2ptrain.node.outer_state.start import Start
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import DataIndex, RunManifest
from p2ptrain.store import RootsDamaged

WARNING = "garbage"
HISTORY_WARNING = "history"

AGAIN_S = 60.0
"""Seconds between a collection that damage prevented and the next try, which reads one chunk of
each kept blob. It is short, since a user who has just unpinned the damaged blob may be waiting."""

TOKEN_BYTES_MAX = 4
"""Maximum number of bytes per token. Some runs need only two; with four, the cache never exceeds
its limit."""


def kept_blobs(
    manifest: RunManifest, chain: Iterable[Certified], snapshots: int, held: Start | None = None
) -> tuple[Digest, ...]:
    """Return the blobs to keep: the newest `snapshots` certified snapshots, the one we would
    restart from (`held`), the updates since the oldest of them, and the blobs named in the
    manifest. Genesis counts as the first snapshot.
    """
    values = [certified.entry.value for certified in chain]
    commits = [value for value in values if isinstance(value, Commit)]
    certified = [SnapshotRef(0, manifest.genesis)]
    certified += [commit.snapshot for commit in commits if commit.snapshot is not None]
    kept: list[SnapshotRef | Start] = [*certified[-snapshots:], *([held] if held else [])]
    first_step = min(snapshot.step for snapshot in kept)
    updates = [commit.update for commit in commits if commit.step >= first_step]
    named = (manifest.data.index, manifest.tokenizer)
    return tuple(dict.fromkeys((*named, *(snapshot.digest for snapshot in kept), *updates)))


def kept_data(
    data: DataIndex, book: Leases, rules: Rules, me: PeerId, blocks_max: int | None
) -> Sequence[Digest]:
    """Return the data blocks to keep, those needed soonest first.

    Our own lease comes first, even if it has more than `blocks_max` blocks: our trainer is about to
    read it. The cursor returns to a block only after all others, so one pass from the cursor
    contains each block once. With `blocks_max` None, keep all blocks.
    """
    if blocks_max is None:
        return [*data.validation, *data.train]
    own = book.held.get(me, ())
    leased = [block for lease in book.held.values() for block in lease]
    once = range(book.next_block, book.next_block + rules.blocks)
    needed = (*own, *leased, *book.returned, *once)
    blocks = dict.fromkeys(data.train[rules.data_block(block)] for block in needed)
    return [*data.validation, *list(blocks)[: max(blocks_max, len(own))]]


def cached_blocks_max(config: NodeConfig, manifest: RunManifest) -> int | None:
    """Return how many training blocks a node with these options keeps; None means all."""
    if config.seed:
        return None
    return config.data_cache_bytes // (TOKEN_BYTES_MAX * manifest.data.block_tokens)


@dataclass(frozen=True, slots=True)
class Roots:
    """The blobs and chunks that garbage collection must keep. All chunks of a blob are kept with
    it."""

    blobs: tuple[Digest, ...]
    chunks: Sequence[Digest]


def roots(
    manifest: RunManifest,
    ledger: Ledger,
    data: DataIndex | None,
    config: NodeConfig,
    held: Start | None,
    history: Iterable[Digest] = (),
) -> Roots:
    """Return all blobs and chunks that this node needs.

    `held` is the newest snapshot of its chain that it has. `history` are the blobs for replays from
    genesis. The updates of the current reduce are needed too, even if not voted for. If `data` is
    None, it is not known which chunks are data, so none are returned.
    """
    assert config.keep_snapshots is not None, (
        "a node that keeps everything must not collect garbage"
    )
    under_way = (*ledger.voted_for(), *ledger.view.held)
    kept = kept_blobs(manifest, ledger.kept.entries, config.keep_snapshots, held)
    blobs = (*kept, *under_way, *history)
    if data is None:
        return Roots(blobs, ())
    blocks_max = cached_blocks_max(config, manifest)
    book = ledger.state.lease_book
    return Roots(blobs, kept_data(data, book, ledger.rules, ledger.me, blocks_max))


async def keep_store_small(parts: Parts) -> None:
    """Collect garbage whenever a newer snapshot has been certified, until cancelled.

    Raises StoreError: the store cannot take a repaired chunk.
    """
    if parts.config.keep_snapshots is None:
        return
    collected_at: SnapshotRef | None = None
    while True:
        newest = parts.ledger.state.snapshot
        if newest is None or newest == collected_at or not parts.at_head():
            await parts.changes.wait()
        elif damaged := await _collect(parts):
            await _see_to(parts, damaged)
        else:
            collected_at = newest


async def _collect(parts: Parts) -> RootsDamaged | None:
    """Collect garbage. If roots are damaged, remove nothing and return them."""
    assert parts.data is not None, "the data index arrives before the head is reached"
    starts = all_starts(parts.store, parts.ledger, parts.origin, parts.manifest.genesis)
    held = await trio.to_thread.run_sync(newest_held, parts.store, starts)
    history = await trio.to_thread.run_sync(_history, parts) if parts.config.seed else ()
    needed = roots(parts.manifest, parts.ledger, parts.data, parts.config, held, history)
    keep = (*needed.blobs, *parts.fetching, *still_offered(parts))
    collect = partial(parts.store.collect_garbage, keep, keep_chunks=needed.chunks)
    try:
        collected = await trio.to_thread.run_sync(collect)
    except (ChunkCorrupt, TryLater) as exc:
        # Nothing was removed. A damaged chunk is fetched again before the next collection.
        if isinstance(exc, ChunkCorrupt) and WARNING not in parts.standing.warnings:
            parts.scrub_asked.set()  # If one chunk is damaged, others may be too.
        parts.journal.write("not-collected", code=exc.code, reason=exc.what)
        return exc if isinstance(exc, RootsDamaged) else None
    parts.standing.warnings.pop(WARNING, None)
    parts.journal.write("collected", chunks=collected.chunks, bytes=collected.bytes_freed)
    parts.changes.ring()
    return None


def _history(parts: Parts) -> tuple[Digest, ...]:
    """Return the blobs that this seed keeps for replays from genesis, and update the warning. This
    call blocks; run it in a thread."""
    found = held_history(
        parts.store,
        parts.manifest,
        parts.ledger.kept,
        disk_free=shutil.disk_usage(parts.home.root).free,
        snapshot_bytes=8 * parts.layout.numel,
    )
    if found.caution is None:
        parts.standing.warnings.pop(HISTORY_WARNING, None)
    elif HISTORY_WARNING not in parts.standing.warnings:
        parts.standing.warnings[HISTORY_WARNING] = found.caution
        parts.journal.write("history-cut", reason=found.caution.what)
    return found.blobs


async def _see_to(parts: Parts, damaged: RootsDamaged) -> None:
    """Fetch damaged roots again, and warn the user if no peer has them. Until the roots are
    repaired, or the user unpins them, the store can only grow.
    """
    left: RootsDamaged | None = damaged
    if WARNING not in parts.standing.warnings:  # After that, `scrub` asks for them in every pass.
        left = damaged.without(await repair(parts, damaged.roots))
    if left is not None:
        parts.standing.warnings[WARNING] = Caution(
            left.code, left.what, left.remedy(parts.home.root)
        )
        parts.changes.ring()
    await trio.sleep(AGAIN_S)


def still_offered(parts: Parts) -> tuple[Digest, ...]:
    """Return the blobs that a joiner may still be fetching from this node."""
    for digest, until_s in list(parts.offered.items()):
        if parts.now() >= until_s:
            del parts.offered[digest]
    return tuple(parts.offered)
