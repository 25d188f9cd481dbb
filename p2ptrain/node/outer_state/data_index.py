"""Fetch the run's tokenizer, and the index that gives the digest of each data block."""

from __future__ import annotations

from functools import partial

from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.run import DataIndex


async def learn_data(context: Context) -> None:
    """Fetch the tokenizer and the index of the run's data blocks, and set `context.blobs.data`."""
    manifest = context.manifest
    for digest in (manifest.data.index, manifest.tokenizer):
        await fetch.fetch(context, digest)
    read = partial(context.store.read_blob, manifest.data.index)
    index = await fetch.use(context, manifest.data.index, read)
    context.blobs.data = DataIndex.from_bytes(
        index,
        train_blocks=manifest.data.train_blocks,
        validation_blocks=manifest.data.validation_blocks,
    )
