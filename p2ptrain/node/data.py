"""The data blocks of our lease, on this disk before the trainer needs them.

Blocks come through the swarm like everything else. A background task fetches ahead along the
ledger's cursor, so that the run does not depend on any one node that happens to hold all data; a
damaged or missing block is fetched again when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from p2ptrain.ids import Digest
from p2ptrain.node import transfer
from p2ptrain.node.parts import Parts

AHEAD_BATCH_BLOCKS = 64
AHEAD_BYTES_MAX = 1 << 30
"""How much data a node keeps ahead of need."""


async def paths_of(parts: Parts, digests: Sequence[Digest]) -> list[Path]:
    """The files of these blocks, all of which are here when this returns."""
    missing = [digest for digest in digests if not parts.store.has_chunk(digest)]
    if missing:
        await transfer.fetch_loose(parts, missing)
    return [parts.store.chunk_path(digest) for digest in digests]


async def fetch_ahead(parts: Parts) -> None:
    """Fetch the blocks that the run will need next, in order, until all or enough are here."""
    while not parts.at_head():
        await parts.changes.wait()
    wanted = ahead(parts)
    for start in range(0, len(wanted), AHEAD_BATCH_BLOCKS):
        batch = wanted[start : start + AHEAD_BATCH_BLOCKS]
        missing = [digest for digest in batch if not parts.store.has_chunk(digest)]
        if missing:
            await transfer.fetch_loose(parts, missing)
        await trio.lowlevel.checkpoint()
    parts.journal.write("data-held", blocks=len(wanted))


def ahead(parts: Parts) -> list[Digest]:
    """Validation blocks, then those from the cursor on that the rest of the run can use."""
    rules, state = parts.ledger.rules, parts.ledger.state
    members = max(len(state.members), 1)
    needed = (rules.outer_steps - state.step) * rules.blocks_per_lease * members
    block_bytes = 4 * parts.manifest.data.block_tokens
    count = min(needed, AHEAD_BYTES_MAX // block_bytes, rules.blocks)
    first = state.lease_book.next_block
    following = [parts.data_block(block) for block in range(first, first + count)]
    return [*parts.validation_blocks, *dict.fromkeys(following)]
