"""Fetch the data blocks of our lease (the blocks that we may train on now) before the trainer needs
them.

Blocks are fetched from peers. A background task also fetches blocks outside our lease, so that the
run does not depend on a single node that has all data. A damaged or missing block is fetched again
when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.terms import lease_blocks
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.outer_state.kept import TOKEN_BYTES_MAX, cached_blocks_max, kept_data
from p2ptrain.node.state.context import Context

AHEAD_BATCH_BLOCKS = 64
AHEAD_BYTES_MAX = 1 << 30
"""Maximum bytes of data that a node fetches before they are needed."""

NEWCOMERS = 3
"""Number of members that are assumed to join, and to need blocks too."""


async def paths_of(context: Context, digests: Sequence[Digest]) -> tuple[str, ...]:
    """Fetch these blocks if necessary, and return the paths of their files."""
    missing = [digest for digest in digests if not context.store.has_chunk(digest)]
    if missing:
        await fetch.fetch_loose(context, missing)
    return tuple(str(context.store.chunk_path(digest)) for digest in digests)


async def fetch_ahead(context: Context) -> None:
    """Fetch the blocks that the run will need next, the soonest needed first, until cancelled."""
    held: set[Digest] = set()
    while True:
        height = context.ledger.snapshot.height
        wanted = ahead(context)
        # Forget unwanted blocks: garbage collection may delete them, and they may be wanted later.
        held.intersection_update(wanted)
        missing = [digest for digest in wanted if digest not in held]
        for start in range(0, len(missing), AHEAD_BATCH_BLOCKS):
            batch = missing[start : start + AHEAD_BATCH_BLOCKS]
            await paths_of(context, batch)
            held.update(batch)
        if missing:
            context.journal.write("data-held", blocks=len(held))
        while context.ledger.snapshot.height == height:
            await context.changes.wait()


def ahead(context: Context, *, bytes_max: int = AHEAD_BYTES_MAX) -> list[Digest]:
    """Return the blocks to fetch, the most urgent first: validation blocks, our lease, other
    leases, blocks that departed members gave back, later blocks.

    Other members' leases are included: if a member leaves, others must train on its blocks, and the
    peers that had these blocks may then be gone too. The order and the cache limit are those of
    `kept`, so that no block is fetched that the next garbage collection would remove.
    """
    assert context.blobs.data is not None, "prefetching starts after the data index has arrived"
    rules, state = context.ledger.rules, context.ledger.snapshot
    book = state.lease_book
    members = len(state.members) + NEWCOMERS
    leased = sum(map(len, book.held.values())) + len(book.returned)
    lease = lease_blocks(state.terms, rules.outer_steps, rules.blocks_per_lease)
    needed = leased + (rules.outer_steps - state.step) * lease * members
    most = min(needed, bytes_max // (TOKEN_BYTES_MAX * context.manifest.data.block_tokens))
    cached = cached_blocks_max(context.config, context.manifest)
    if cached is not None:
        most = min(most, cached)
    return list(kept_data(context.blobs.data, book, rules, context.me, most))
