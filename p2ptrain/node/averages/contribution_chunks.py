"""Fetch a chunk of a claimed contribution from any peer that has it.

*Whose word is it?* A claim names its contribution, and a contribution names its chunks, each by
digest. So any peer may deliver them.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.errors import RemoteProtocolError, StoreError, counted
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.sum_tracing import SegmentPlace

MISSING_S = 5.0
"""Seconds after which a chunk that nobody sends counts as missing, at the next failed try. It is so
short that the fetch does not warn the user: checks are tried again."""

FETCH_S = 20.0
"""Deadline in seconds for one try. It is enough for the longest chunk at half a Mbit per second."""

LOST = "the contribution is no longer stored anywhere, or its owner does not send it"


async def chunk_of(
    context: Context,
    contribution: Digest,
    format: ContributionFormat,
    number: int,
    limit_s: float = MISSING_S,
) -> bytes:
    """Return a chunk of the contribution of this digest. `limit_s` is the time after which a chunk
    that nobody sends counts as missing. Raises P2PTrainError: it is not available, or it is not a
    contribution."""
    await _fetched(context, contribution, limit_s)
    read = partial(format.checked_manifest, context.store, contribution)
    manifest = await trio.to_thread.run_sync(read)
    chunk = manifest.chunks[number]
    await _fetched(context, chunk, limit_s)
    data = await trio.to_thread.run_sync(context.store.get_chunk, chunk)
    if len(data) != manifest.chunk_size(number):
        raise RemoteProtocolError("its contribution has a chunk of a wrong length")
    return data


async def segment_of(
    context: Context, contribution: Digest, format: ContributionFormat, place: SegmentPlace
) -> bytes:
    """Return a segment of a contribution. Raises P2PTrainError: it is not available."""
    segment = place.segment
    numbers = [
        number
        for number in range(format.chunks)
        if format.elements(number)[0] < segment.stop and format.elements(number)[1] > segment.start
    ]
    chunks = [await chunk_of(context, contribution, format, number) for number in numbers]
    first = segment.offset - numbers[0] * format.chunk_bytes
    return b"".join(chunks)[first : first + segment.bytes]


async def _fetched(context: Context, digest: Digest, limit_s: float) -> None:
    """Fetch a chunk, if it is not here. Raises StoreError: nobody sends it."""
    late = fetch.after(context, limit_s)
    try:
        await fetch.fetch_loose(context, [digest], unwanted=late, patient=False, try_s=FETCH_S)
    except StoreError as exc:
        if exc.code != fetch.NO_SOURCE:
            raise
        kept = f"contributions are kept for {counted(KEPT_STEPS, 'outer step')}"
        raise StoreError(f"{LOST}; {kept}", code=fetch.NO_SOURCE) from exc
