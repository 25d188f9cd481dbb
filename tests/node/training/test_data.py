"""A node fetches data blocks before it needs them: the most urgent first, and as many as fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from p2ptrain.node.outer_state.kept import roots
from p2ptrain.node.training.lease_data import NEWCOMERS, ahead, paths_of
from p2ptrain.run import DataIndex
from p2ptrain.testing.published import BLOCK_TOKENS, BLOCKS, block_file
from tests.node.rig import ANN, Rig, opening, rig


def know_data(r: Rig) -> DataIndex:
    """Give the node the index of the run's data, and return it."""
    manifest = r.context.manifest
    index = DataIndex.from_bytes(
        r.context.store.read_blob(manifest.data.index),
        train_blocks=manifest.data.train_blocks,
        validation_blocks=manifest.data.validation_blocks,
    )
    r.context.blobs.data = index
    return index


async def test_validation_blocks_come_first_then_leased_blocks_then_later_ones(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, steps=3) as r:
        index = know_data(r)
        # Blocks 0 and 1 are leased to the only founder. The following blocks are those of three
        # outer steps, each with two blocks for the founder and for each assumed newcomer.
        following = 3 * 2 * (1 + NEWCOMERS)
        assert ahead(r.context) == [*index.validation, *index.train[: 2 + following]]


async def test_blocks_of_a_member_that_left_are_fetched_too(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=3) as r:
        index = know_data(r)
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        r.decide(opening(r.context.ledger.snapshot))
        book = r.context.ledger.snapshot.lease_book
        assert book.returned == (2, 3)
        wanted = ahead(r.context)
        assert wanted[: 2 + 2 + 2] == [*index.validation, *index.train[:4]]
        assert len(wanted) == len(set(wanted))


async def test_number_of_blocks_fetched_ahead_is_limited_by_data_and_cache(tmp_path: Path) -> None:
    async with rig(tmp_path, steps=10_000) as r:
        know_data(r)
        assert len(ahead(r.context)) == 2 + BLOCKS
        block_bytes = 4 * BLOCK_TOKENS
        assert len(ahead(r.context, bytes_max=10 * block_bytes)) == 2 + 10
        r.configure(data_cache_bytes=7 * block_bytes)
        assert len(ahead(r.context)) == 2 + 7


async def test_garbage_collection_keeps_our_lease_and_blocks_fetched_ahead(tmp_path: Path) -> None:
    """Even a cache of 0 bytes keeps our whole lease. A larger cache also keeps the blocks that
    `ahead` lists. Otherwise they would be deleted and fetched again and again."""
    async with rig(tmp_path, steps=9, inner_steps=4) as r:
        index, store = know_data(r), r.context.store
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        ledger = r.context.ledger.core
        own = [index.train[block] for block in ledger.state.leases[r.context.me]]
        for blocks in (0, 3, 6, 10):
            cache = replace(r.context.config, data_cache_bytes=blocks * 4 * BLOCK_TOKENS)
            r.surround(config=cache)
            needed = roots(r.run.manifest, ledger, index, cache, None)
            for _ in range(2):  # A new chunk survives one collection.
                store.collect_garbage(needed.blobs, keep_chunks=needed.chunks)
            left = [block for block in index.train if store.has_chunk(block)]
            assert set(own) <= set(left)
            assert len(left) <= max(blocks, len(own))
            assert set(ahead(r.context)) <= {*left, *index.validation}
            await paths_of(r.context, own)
            for number in range(BLOCKS):
                store.put_chunk(block_file(number), durable=False)


async def test_each_block_path_names_the_file_of_that_block(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        index = know_data(r)
        paths = await paths_of(r.context, index.train[:3])
        assert [Path(path).read_bytes() for path in paths] == [
            block_file(0),
            block_file(1),
            block_file(2),
        ]
        assert await paths_of(r.context, []) == ()
