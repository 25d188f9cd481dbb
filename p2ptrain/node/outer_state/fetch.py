"""Fetch blobs and chunks from peers that have them, no matter how long it takes.

Only one fetch of a digest runs at a time: a second caller waits for the first. If no peer has it
now, the fetch is repeated when a new peer appears or after a short time. A full disk is an error
immediately.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import outcome
import trio

from p2ptrain.dataplane import Endpoint, SecureSocket, dial
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, StoreError, TryLater
from p2ptrain.ids import Digest, PeerId
from p2ptrain.node.gossip.reachability import may_be_at
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import in_thread
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import FetchingSnapshot
from p2ptrain.swarm import (
    PURPOSE,
    FetchHandle,
    FetchProgress,
    FetchReport,
    fetch_blob,
    fetch_chunks,
)

DIAL_S = 8.0
FETCH_S = 3600.0
"""Deadline in seconds of one try to fetch a blob. Received chunks are kept, and the next try
continues from there."""

TRIES_BEFORE_WORD = 4
"""Number of failed tries before a warning. A starting node has not yet heard of peers that have the
bytes, so the first tries often fail."""

WAITS_FOR_A_SOURCE = "the node keeps asking, and waits for a peer that has them"

RETRY_S = 2.0
"""Seconds between tries: one heartbeat, after which this node may have heard of a peer that has the
bytes."""

BLAMED_S = 60.0
"""Seconds for which a peer that sent a wrong chunk is not asked: a wrong chunk wastes 4 MiB, and
there is a try every 2 s."""

OTHERS_MAX = 16
"""Maximum number of sources of one try that are not vouched for. A fetch has 64 lanes, and in an
open run, silent peers could occupy all of them. Newcomers that start together can still send each
other chunks."""

READS_MAX = 3
"""Maximum number of reads of a blob. Chunks damaged on our disk are fetched again; a disk that
damages chunks this often is broken."""

NO_SOURCE = "CKPT-NO-SOURCE"
"""The error code for bytes that no peer sends, even if a peer has them."""

Fetch = Callable[[Sequence[Endpoint], FetchHandle[Endpoint]], FetchReport]
Result = TypeVar("Result")


def never() -> bool:
    return False


async def fetch(
    parts: Parts,
    digest: Digest,
    *,
    shown: bool = False,
    unwanted: Callable[[], bool] = never,
    patient: bool = True,
) -> FetchReport:
    """Fetch the complete blob `digest` into the store. `shown`: show the fetch as the node's state.

    `unwanted` returns whether to give up instead of trying again. It is called if no peer has the
    blob, and after a try without any new chunk. Unless `patient`, it is called after every failed
    try.

    Raises:
        StoreError: the store cannot take it, the digest does not name a blob, or no peer has it
            (CKPT-NO-SOURCE) and it is unwanted.
    """

    def progress(so_far: FetchProgress) -> None:
        total = so_far.bytes_fetched / so_far.fraction if so_far.fraction else 0
        if parts.standing.fetching is None:
            parts.journal.write("state", state=FetchingSnapshot.name)
        parts.standing.fetching = FetchingSnapshot(so_far.bytes_fetched, int(total))

    try:
        return await _until_here(
            parts,
            digest,
            lambda sources, handle: fetch_blob(
                parts.store,
                digest,
                sources,
                partial(_dial, parts),
                deadline_s=FETCH_S,
                progress=progress if shown else None,
                handle=handle,
            ),
            unwanted,
            patient=patient,
        )
    finally:
        if shown and parts.standing.fetching is not None:
            parts.standing.fetching = None
            parts.journal.write("state", state=parts.standing.shown.name)


async def use(
    parts: Parts,
    digest: Digest,
    reader: Callable[[], Result],
    unwanted: Callable[[], bool] = never,
    *,
    patient: bool = True,
) -> Result:
    """Run `reader`, which reads the blob `digest`, in a thread. Fetch the blob first if necessary.

    Raises:
        StoreError: as for `fetch`, or if the disk damages chunks again and again.
    """
    for _ in range(READS_MAX):
        if not await trio.to_thread.run_sync(parts.store.holds_blob, digest):
            await fetch(parts, digest, unwanted=unwanted, patient=patient)
        try:
            return await trio.to_thread.run_sync(reader)
        except (ChunkMissing, ChunkCorrupt) as exc:
            parts.journal.write("chunk-damaged", digest=digest, reason=exc.what)
            last = exc
    raise last


async def fetch_loose(
    parts: Parts,
    digests: Sequence[Digest],
    *,
    unwanted: Callable[[], bool] = never,
    patient: bool = True,
    try_s: float | None = None,
) -> FetchReport:
    """Fetch these chunks into the store. `try_s` is the deadline of a try. Raises StoreError as
    `fetch` does."""
    deadline_s = FETCH_S if try_s is None else try_s
    return await _until_here(
        parts,
        digests[0],
        lambda sources, handle: fetch_chunks(
            parts.store,
            digests,
            sources,
            partial(_dial, parts),
            deadline_s=deadline_s,
            handle=handle,
        ),
        unwanted,
        patient=patient,
    )


async def _until_here(
    parts: Parts,
    name: Digest,
    attempt: Fetch,
    unwanted: Callable[[], bool],
    *,
    patient: bool,
) -> FetchReport:
    told, tries, blamed = "", 0, dict[PeerId, float]()
    async with _one_at_a_time(parts, name):
        while True:
            tries += 1
            handle: FetchHandle[Endpoint] = FetchHandle()
            fit = partial(_fit, parts, blamed, set())
            work = partial(attempt, fit(), handle)
            try:
                report = await _run_beside_newcomers(parts, work, handle, fit)
            except (TryLater, StoreError) as exc:
                progresses = patient and handle.chunks_fetched > 0
                reason = _why_again(exc, unwanted, progresses)
            else:
                for peer, count_bytes in report.bytes_by_peer.items():
                    parts.paths.at_least(peer, count_bytes, report.seconds)
                return report
            finally:
                for peer in handle.blamed:
                    blamed[peer] = parts.now()
                    parts.journal.write("bad-chunk", peer=peer, digest=name)
            if reason.what != told:
                told = reason.what
                parts.journal.write(
                    "fetch-delayed",
                    digest=name,
                    code=reason.code,
                    reason=told,
                    evidence=reason.evidence,
                )
            if tries == TRIES_BEFORE_WORD:
                parts.standing.warnings[name] = Caution(reason.code, told, WAITS_FOR_A_SOURCE)
                parts.changes.ring()
            await _others_or_later(parts)


def _why_again(
    exc: TryLater | StoreError, unwanted: Callable[[], bool], progresses: bool
) -> TryLater | StoreError:
    """Return why a try failed if it must be repeated. Raise StoreError if it must not."""
    if isinstance(exc, TryLater):
        if not progresses and unwanted():
            raise StoreError(exc.what, code=NO_SOURCE, evidence=exc.evidence) from exc
    elif exc.code != NO_SOURCE or unwanted():
        raise exc
    return exc


def _fit(parts: Parts, blamed: Mapping[PeerId, float], others: set[PeerId]) -> list[Endpoint]:
    """Return the sources to use: all that are vouched for first, then a few others.

    `others` are the other sources already used in this try. They are chosen at random, so that a
    peer cannot ensure that it is chosen. Peers that recently sent a wrong chunk are left out.
    """
    since = parts.now() - BLAMED_S
    usable = [each for each in sources(parts) if blamed.get(each.peer, -math.inf) < since]
    vouched = [each for each in usable if parts.is_vouched_for(each.peer)]
    drawn = [each for each in usable if not parts.is_vouched_for(each.peer)]
    parts.draw.shuffle(drawn)
    new = [each.peer for each in drawn if each.peer not in others]
    others.update(new[: max(0, OTHERS_MAX - len(others))])
    return [*vouched, *(each for each in drawn if each.peer in others)]


async def _run_beside_newcomers(
    parts: Parts,
    work: Callable[[], FetchReport],
    handle: FetchHandle[Endpoint],
    fit: Callable[[], Sequence[Endpoint]],
) -> FetchReport:
    """Run `work` and return its result. Peers that appear in the meantime become sources too."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer_newcomers, parts, handle, fit)
        # Capture the error: otherwise the nursery would wrap it in a group.
        report = await outcome.acapture(in_thread, work, stop=handle.cancel)
        nursery.cancel_scope.cancel()
    return report.unwrap()


async def _offer_newcomers(
    parts: Parts, handle: FetchHandle[Endpoint], fit: Callable[[], Sequence[Endpoint]]
) -> None:
    """Offer new sources to a running fetch. A node that has just started knows one or two peers
    when it begins to fetch. Most peers have not heard of it, and refuse it until they have its
    certificate.
    """
    while True:
        for source in fit():
            handle.offer(source)
        await _others_or_later(parts)


async def _others_or_later(parts: Parts) -> None:
    """Return when there is another peer to ask, or after `RETRY_S`."""
    asked = {source.peer for source in sources(parts)}
    with trio.move_on_after(RETRY_S):
        while {source.peer for source in sources(parts)} <= asked:
            await parts.changes.wait()


@asynccontextmanager
async def _one_at_a_time(parts: Parts, name: Digest) -> AsyncIterator[None]:
    while name in parts.fetching:
        await parts.changes.wait()
    parts.fetching.add(name)
    try:
        yield
    finally:
        parts.fetching.discard(name)
        parts.standing.warnings.pop(name, None)
        parts.changes.ring()


def sources(parts: Parts) -> list[Endpoint]:
    """Return the data planes of all admitted peers that are heard, most recently heard first."""
    now = parts.now()
    views = [view for view in parts.peers if view.endpoint is not None and view.peer != parts.me]
    alive = [view for view in views if parts.detector.status(view.peer, now) != "red"]
    alive.sort(key=lambda view: -view.heard_s)
    told = [view.endpoint for view in alive if parts.admission.admits(view.peer)]
    return [endpoint for endpoint in told if endpoint and may_be_at(parts, endpoint)]


def _dial(parts: Parts, endpoint: Endpoint) -> SecureSocket:
    return dial(
        parts.credentials,
        endpoint,
        {"purpose": PURPOSE},
        deadline_s=DIAL_S,
        encrypted=parts.manifest.encrypted,
    )
