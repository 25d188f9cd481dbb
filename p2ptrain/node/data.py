"""The data blocks of our lease, on this disk before the trainer needs them.

Blocks come through the swarm like everything else. A background task fetches ahead along the
ledger's cursor, so that the run does not depend on any one node that happens to hold all data; a
damaged or missing block is fetched again when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p2ptrain.ids import Digest
from p2ptrain.node import transfer
from p2ptrain.node.parts import Parts

AHEAD_BATCH_BLOCKS = 64
AHEAD_BYTES_MAX = 1 << 30
"""How much data a node keeps ahead of need."""

NEWCOMERS = 3


async def paths_of(parts: Parts, digests: Sequence[Digest]) -> list[Path]:
    """The files of these blocks, all of which are here when this returns."""
    missing = [digest for digest in digests if not parts.store.has_chunk(digest)]
    if missing:
        await transfer.fetch_loose(parts, missing)
    return [parts.store.chunk_path(digest) for digest in digests]


async def fetch_ahead(parts: Parts) -> None:
    """Keep fetching the blocks that the run will need next, in the order of their need."""
    held: set[Digest] = set()
    while True:
        height = parts.ledger.state.height
        missing = [digest for digest in ahead(parts) if digest not in held]
        for start in range(0, len(missing), AHEAD_BATCH_BLOCKS):
            batch = missing[start : start + AHEAD_BATCH_BLOCKS]
            await paths_of(parts, batch)
            held.update(batch)
        if missing:
            parts.journal.write("data-held", blocks=len(held))
        while parts.ledger.state.height == height:
            await parts.changes.wait()


def ahead(parts: Parts) -> list[Digest]:
    """Validation blocks, then all that are leased or given back, then those from the cursor on.

    Another member's lease comes back if it leaves, at a time when whoever had its blocks may be
    gone too. For the same reason we look ahead for some more members than there are.
    """
    rules, state = parts.ledger.rules, parts.ledger.state
    members = len(state.members) + NEWCOMERS
    needed = (rules.outer_steps - state.step) * rules.blocks_per_lease * members
    block_bytes = 4 * parts.manifest.data.block_tokens
    count = min(needed, AHEAD_BYTES_MAX // block_bytes, rules.blocks)
    first = state.lease_book.next_block
    book = state.lease_book
    leased = [block for lease in book.held.values() for block in lease]
    following = [*leased, *book.returned, *range(first, first + count)]
    return [*parts.validation_blocks, *dict.fromkeys(map(parts.data_block, following))]
