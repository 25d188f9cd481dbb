"""Name the blobs and chunks that this node keeps. `retention` removes the others.

The choice is a pure function of the ledger, the options and the newest snapshot that is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2ptrain.config.node import NodeConfig
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Certified, Commit, SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.run import DataIndex, RunManifest

TOKEN_BYTES_MAX = 4
"""A token takes two or four bytes. We assume four, so the cache never exceeds the requested
size."""


def kept_blobs(
    manifest: RunManifest,
    chain: Iterable[Certified],
    snapshots: int,
    held: SnapshotRef | None = None,
) -> tuple[Digest, ...]:
    """Return the newest `snapshots` certified snapshots, the one we would restart from (`held`),
    the updates since the oldest of them, and the blobs named in the manifest. Genesis counts as the
    first snapshot.
    """
    values = [certified.entry.value for certified in chain]
    commits = [value for value in values if isinstance(value, Commit)]
    certified = [SnapshotRef(0, manifest.genesis)]
    certified += [commit.snapshot for commit in commits if commit.snapshot is not None]
    kept: list[SnapshotRef] = [*certified[-snapshots:], *([held] if held else [])]
    first_step = min(snapshot.step for snapshot in kept)
    updates = [commit.update for commit in commits if commit.step >= first_step]
    named = (manifest.data.index, manifest.tokenizer)
    return tuple(dict.fromkeys((*named, *(snapshot.digest for snapshot in kept), *updates)))


def kept_data(
    data: DataIndex, book: Leases, rules: Rules, me: PeerId, blocks_max: int | None
) -> Sequence[Digest]:
    """Return the data blocks to keep, those needed soonest first.

    Our own lease comes first, and all of it is kept even if it has more than `blocks_max` blocks,
    because our trainer is about to read it. The lease cursor goes through all blocks before it
    repeats one, so `once`, one pass from its current position, contains each block once.
    `blocks_max` None keeps all blocks.
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
    """Return how many training blocks a node with these options keeps; None for all."""
    if config.seed:
        return None
    return config.data_cache_bytes // (TOKEN_BYTES_MAX * manifest.data.block_tokens)


@dataclass(frozen=True, slots=True)
class Roots:
    """The blobs and chunks that garbage collection must not touch, with everything they consist
    of."""

    blobs: tuple[Digest, ...]
    chunks: Sequence[Digest]


def roots(
    manifest: RunManifest,
    ledger: Ledger,
    data: DataIndex | None,
    config: NodeConfig,
    held: SnapshotRef | None,
    history: Iterable[Digest] = (),
) -> Roots:
    """Return all blobs and chunks that this node needs.

    `held` is the newest snapshot of its chain that it has, and `history` the blobs for replays from
    genesis. The updates of the current reduce are needed too, whether this node has voted for them
    or not. Without the index we cannot tell which chunks are data, so no bare chunks are returned.
    """
    assert config.keep_snapshots is not None, "a node that keeps all snapshots needs no roots"
    under_way = (*ledger.voted_for(), *ledger.reports.held)
    kept = kept_blobs(manifest, ledger.kept.entries, config.keep_snapshots, held)
    blobs = (*kept, *under_way, *history)
    if data is None:
        return Roots(blobs, ())
    blocks_max = cached_blocks_max(config, manifest)
    book = ledger.state.lease_book
    return Roots(blobs, kept_data(data, book, ledger.rules, ledger.me, blocks_max))
