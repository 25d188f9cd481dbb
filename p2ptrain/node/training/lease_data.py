"""Fetch the data blocks of our lease before the trainer needs them.

Blocks are fetched from peers like everything else. A background task fetches blocks ahead of the
ledger's cursor, so that the run does not depend on a single node that has all data. A damaged or
missing block is fetched again when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.terms import lease_blocks
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.outer_state.retention import TOKEN_BYTES_MAX, cached_blocks_max, kept_data
from p2ptrain.node.state.context import Parts

AHEAD_BATCH_BLOCKS = 64
AHEAD_BYTES_MAX = 1 << 30
"""Maximum bytes of data that a node fetches before they are needed."""

NEWCOMERS = 3


async def paths_of(parts: Parts, digests: Sequence[Digest]) -> list[Path]:
    """Fetch these blocks if necessary, and return their files."""
    missing = [digest for digest in digests if not parts.store.has_chunk(digest)]
    if missing:
        await fetch.fetch_loose(parts, missing)
    return [parts.store.chunk_path(digest) for digest in digests]


async def fetch_ahead(parts: Parts) -> None:
    """Keep fetching the blocks that the run will need next, the soonest needed first."""
    held: set[Digest] = set()
    while True:
        height = parts.ledger.state.height
        wanted = ahead(parts)
        # Garbage collection may remove a block that is no longer wanted; it is fetched again if
        # needed.
        held.intersection_update(wanted)
        missing = [digest for digest in wanted if digest not in held]
        for start in range(0, len(missing), AHEAD_BATCH_BLOCKS):
            batch = missing[start : start + AHEAD_BATCH_BLOCKS]
            await paths_of(parts, batch)
            held.update(batch)
        if missing:
            parts.journal.write("data-held", blocks=len(held))
        while parts.ledger.state.height == height:
            await parts.changes.wait()


def ahead(parts: Parts) -> list[Digest]:
    """Return the blocks to fetch, the most urgent first: validation blocks, our lease, other
    leases, returned blocks, later blocks.

    Other members' leases are included because the blocks return to the pool if a member leaves, and
    the peers that had them may then be gone too. For the same reason, the number of members is
    assumed to grow by NEWCOMERS. The order and the cache limit are those of `retention`, so that no
    block is fetched that the next garbage collection would remove.
    """
    assert parts.data is not None, "prefetching starts after the data index has arrived"
    rules, state = parts.ledger.rules, parts.ledger.state
    book = state.lease_book
    members = len(state.members) + NEWCOMERS
    leased = sum(map(len, book.held.values())) + len(book.returned)
    lease = lease_blocks(state.terms, rules.outer_steps, rules.blocks_per_lease)
    needed = leased + (rules.outer_steps - state.step) * lease * members
    most = min(needed, AHEAD_BYTES_MAX // (TOKEN_BYTES_MAX * parts.manifest.data.block_tokens))
    cached = cached_blocks_max(parts.config, parts.manifest)
    if cached is not None:
        most = min(most, cached)
    return list(kept_data(parts.data, book, rules, parts.me, most))
