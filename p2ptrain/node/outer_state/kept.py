"""Choose the blobs and chunks that this node keeps. `retention` removes all others.

The choice depends only on the ledger, the options and the newest snapshot in the store.
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
"""Maximum bytes of a token in a data block: two or four, depending on the vocabulary. We assume
four, so the cache never exceeds the requested size."""


def kept_blobs(
    manifest: RunManifest,
    chain: Iterable[Certified],
    snapshots: int,
    held: SnapshotRef | None = None,
) -> tuple[Digest, ...]:
    """Return the blobs to keep: those that the manifest names, the newest `snapshots` certified
    snapshots, the snapshot from which this node would restart (`held`), and the updates since the
    oldest of these snapshots. Genesis counts as the first certified snapshot."""
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
    """Return the data to keep: validation data, then training blocks, those needed soonest first.

    At most `blocks_max` training blocks are kept; None means all. The blocks that this node has
    leased, for its trainer to read next, are all kept, even if there are more of them. Then follow
    the blocks of other leases, returned blocks, and those that will be leased next. The ledger
    leases all blocks in turn before it repeats one, so `once` contains each block once."""
    if blocks_max is None:
        return [*data.validation, *data.train]
    own = book.held.get(me, ())
    leased = [block for lease in book.held.values() for block in lease]
    once = range(book.next_block, book.next_block + rules.blocks)
    needed = (*own, *leased, *book.returned, *once)
    blocks = dict.fromkeys(data.train[rules.data_block(block)] for block in needed)
    return [*data.validation, *list(blocks)[: max(blocks_max, len(own))]]


def cached_blocks_max(config: NodeConfig, manifest: RunManifest) -> int | None:
    """Return how many training blocks a node with these options may keep; None for all."""
    if config.seed:
        return None
    return config.data_cache_bytes // (TOKEN_BYTES_MAX * manifest.data.block_tokens)


@dataclass(frozen=True, slots=True)
class Roots:
    """The blobs, with all their chunks, and the single chunks that must be kept."""

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

    `held` is the newest snapshot of the node's chain in its store, and `history` has the blobs for
    replays from genesis. The updates of the current reduce are needed too, whether this node has
    voted for them or not. `data` is None until the data index has been fetched. Then it is not
    known which chunks are data, so the result has only blobs."""
    assert config.keep_snapshots is not None, "a node that keeps all snapshots needs no roots"
    under_way = (*ledger.voted_for(), *ledger.reports.held)
    kept = kept_blobs(manifest, ledger.kept.entries, config.keep_snapshots, held)
    blobs = (*kept, *under_way, *history)
    if data is None:
        return Roots(blobs, ())
    blocks_max = cached_blocks_max(config, manifest)
    book = ledger.state.lease_book
    return Roots(blobs, kept_data(data, book, ledger.rules, ledger.me, blocks_max))
