"""Record the unigram entropy of the run's data once, as a line of reference for the loss.

It is estimated from a sample: from training blocks that this node has fetched for other reasons.
Sequences are shuffled before they are packed into blocks, so every block is a fair sample. A node
without any blocks, such as a reader, records nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import trio

from p2ptrain.data.blocks import decode_block
from p2ptrain.data.token_entropy import entropy_nats, estimated_entropy_nats
from p2ptrain.errors import StoreError
from p2ptrain.ids import Digest
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.lease_data import ahead
from p2ptrain.observe.series import SeriesReader, SeriesRecorder, SeriesUnavailable
from p2ptrain.observe.series.rows import UNIGRAM_ENTROPY, FactRow

TOKENS_EACH = 64
"""Number of tokens to count for each token of the vocabulary, if that many are here. The error of
the estimate is then far below a hundredth of a nat."""

BLOCKS_MAX = 1024
"""Maximum number of blocks to read: a second of processor time at most, in a thread."""

SEARCHED_MAX = 16_384
"""Maximum number of blocks at the beginning of the index to look for, besides those that the node
needs soon."""

LOOK_S, LOOK_S_MAX = 15.0, 3600.0
"""Seconds until the first look at the store, doubled after each look up to the maximum."""

LOOKS = 4
"""Number of looks after which the node makes do with the blocks that it has."""


async def record_entropy(
    context: Context, recorder: SeriesRecorder, *, look_s: float = LOOK_S
) -> None:
    """Record the entropy, unless the series has it."""
    if await trio.to_thread.run_sync(_is_known, context):
        return
    looks, here = 0, list[Digest]()
    while looks < LOOKS and len(here) < _wanted(context):
        await trio.sleep(look_s)
        look_s = min(2 * look_s, LOOK_S_MAX)
        if context.blobs.data is not None:
            here = await trio.to_thread.run_sync(blocks_here, context, ahead(context))
            looks += bool(here)
    value = await trio.to_thread.run_sync(entropy_of, context, here)
    if value is not None:
        recorder.record(FactRow(UNIGRAM_ENTROPY, f"{value:.6f}"))


def _is_known(context: Context) -> bool:
    try:
        with SeriesReader(context.home.series) as reader:
            return reader.meta(UNIGRAM_ENTROPY) is not None
    except SeriesUnavailable:
        return False


def _wanted(context: Context) -> int:
    """Return the number of blocks to read."""
    data, vocab = context.manifest.data, context.manifest.model.vocab
    enough = 1 + TOKENS_EACH * vocab // data.block_tokens
    return min(enough, data.train_blocks, BLOCKS_MAX)


def blocks_here(context: Context, soon: Sequence[Digest]) -> list[Digest]:
    """Return training blocks that are in the store: those among `soon` first, and no more than are
    wanted."""
    index = context.blobs.data
    assert index is not None, "the index has arrived"
    apart = frozenset(index.validation)
    likely = dict.fromkeys((*soon, *index.train[:SEARCHED_MAX]))
    held = (each for each in likely if each not in apart and context.store.has_chunk(each))
    return list(islice(held, _wanted(context)))


def entropy_of(context: Context, blocks: Sequence[Digest]) -> float | None:
    """Return the entropy of the data in nats per token, by these blocks; None if none of them can
    be read. Blocks that have been damaged or removed since are left out."""
    model, counts = context.manifest.model, np.zeros(context.manifest.model.vocab, np.int64)
    read = 0
    for digest in blocks:
        try:
            data = context.store.get_chunk(digest)
            rows = decode_block(data, vocab=model.vocab, sequence=model.sequence)
        except StoreError:
            continue
        counts += np.bincount(rows.ravel(), minlength=model.vocab)
        read += 1
    if not read:
        return None
    is_whole = read == context.manifest.data.train_blocks
    return entropy_nats(counts) if is_whole else estimated_entropy_nats(counts)
