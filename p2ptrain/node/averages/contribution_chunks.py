"""Get a chunk of a claimed contribution: from the store, from its owner, or from any peer.

The owner is sure to have the chunk, so one connection and two requests are enough. A check needs
the chunk for one comparison only, so nothing is stored. If the owner does not answer, this node
asks everybody.

*Whose word is it?* A claim names its contribution, and a contribution names its chunks, each by
digest. So any peer may deliver them.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.dataplane import Endpoint
from p2ptrain.errors import (
    ChunkCorrupt,
    ManifestInvalid,
    PeerError,
    RemoteProtocolError,
    StoreError,
    counted,
)
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.proofs.sum_tracing import SegmentPlace
from p2ptrain.store import Store
from p2ptrain.store.blob import BlobManifest
from p2ptrain.swarm import OneSource

MISSING_S = 5.0
"""Seconds after which a chunk that nobody sends counts as missing, at the next failed try. It is so
short that the fetch does not warn the user: checks are tried again."""

FETCH_S = 20.0
"""Deadline in seconds for one try. It is enough for the longest chunk at half a Mbit per second."""

STALL_S, OWNER_S = 10.0, 20.0
"""Seconds that the owner may take for a slice of 64 KiB, and for all. Then everybody is asked."""

THREADS = trio.CapacityLimiter(128)
"""These threads wait for peers, so they are not those of trio, which other work needs. There are
more than the neighbours of a reduce, so that silent owners do not delay what honest ones send: a
contribution that is late makes its peer look like a liar."""

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
    read = partial(_stored, context.store, contribution, format, number)
    if (stored := await trio.to_thread.run_sync(read)) is not None:
        return stored
    if format.peer != context.me:
        given = await _chunk_of_owner(context, contribution, format, number)
        if given is not None:
            return given
    await _fetched(context, contribution, limit_s)
    listed = partial(format.checked_manifest, context.store, contribution)
    manifest = await trio.to_thread.run_sync(listed)
    await _fetched(context, manifest.chunks[number], limit_s)
    if (stored := await trio.to_thread.run_sync(read)) is None:
        raise StoreError(LOST, code=fetch.NO_SOURCE)
    return stored


def _stored(
    store: Store, contribution: Digest, format: ContributionFormat, number: int
) -> bytes | None:
    """Return a chunk of the contribution, if it is in the store. Raises as `chunk_of` does."""
    if not store.has_chunk(contribution):
        return None
    manifest = format.checked_manifest(store, contribution)
    if not store.has_chunk(chunk := manifest.chunks[number]):
        return None
    data = store.get_chunk(chunk)
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


async def _chunk_of_owner(
    context: Context, contribution: Digest, format: ContributionFormat, number: int
) -> bytes | None:
    """Return chunk `number` of the contribution of `format.peer`; None if that peer does not send
    it. Raises RemoteProtocolError: the peer has claimed something that is not a contribution."""
    record = context.peers.table.get(format.peer)
    if record is None or (endpoint := record.endpoint) is None:
        return None
    if not context.admission.admits(format.peer) or not context.peers.may_be_at(endpoint):
        return None
    asking = _Asking(context, endpoint, contribution, format, number)
    reason = f"it did not send the chunk within {OWNER_S:.0f} s"
    with trio.move_on_after(OWNER_S):
        try:
            found, source = await in_thread(asking.run, stop=asking.stop, limiter=THREADS)
        except (PeerError, ChunkCorrupt) as exc:
            reason = exc.what
        else:
            fetch.note_fetched(context, {format.peer: source.received_bytes}, source.took_s)
            return found
    context.journal.write("owner-silent", peer=format.peer, reason=reason)
    return None


class _Asking:
    """One request for a chunk. `run` blocks, so it runs in a thread; `stop` ends it."""

    def __init__(
        self,
        context: Context,
        endpoint: Endpoint,
        contribution: Digest,
        format: ContributionFormat,
        number: int,
    ) -> None:
        self._context = context
        self._connect = partial(
            fetch.connection_with,
            context,
            trio.lowlevel.current_trio_token(),
            endpoint,
            self._is_wanted,
        )
        self._contribution = contribution
        self._format = format
        self._number = number
        self._stopped = False
        self._source: OneSource | None = None

    def run(self) -> tuple[bytes | None, OneSource]:
        connection = self._connect()
        source = OneSource(connection, self._context.plane.downlink, STALL_S)
        self._source = source
        if self._stopped:
            source.end()
        try:
            found = self._chunk(source)
        except BaseException:
            connection.close()
            raise
        finally:
            source.close()
        self._context.blobs.connections.give_back(connection)
        return found, source

    def stop(self) -> None:
        self._stopped = True
        if self._source is not None:
            self._source.end()

    def _is_wanted(self) -> bool:
        return not self._stopped

    def _chunk(self, source: OneSource) -> bytes | None:
        if (listed := source.chunk(self._contribution)) is None:
            return None
        try:
            manifest = self._format.checked(BlobManifest.from_wire(listed))
        except ManifestInvalid as exc:
            raise RemoteProtocolError(exc.what, peer=self._format.peer) from exc
        found = source.chunk(manifest.chunks[self._number])
        if found is not None and len(found) != manifest.chunk_size(self._number):
            what = "its contribution has a chunk of a wrong length"
            raise RemoteProtocolError(what, peer=self._format.peer)
        return found
