"""Fetch blobs and chunks from peers that have them, no matter how long it takes.

Only one fetch of a digest runs at a time: a second caller waits for the first. If no peer has the
bytes now, the fetch is repeated when a new peer appears or after a short time. A full disk is an
error immediately.
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
from p2ptrain.node.state.context import Context
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

TRIES_BEFORE_WORD = 4
"""Number of failed tries before a warning. A starting node has not yet heard of peers that have the
bytes, so the first tries often fail."""

WAITS_FOR_A_SOURCE = "the node keeps asking, and waits for a peer that has them"


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
    context: Context,
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
        StoreError: the store cannot take the blob; the digest does not name a blob; or `unwanted`
        returned True and no peer has the blob (CKPT-NO-SOURCE).
    """

    def progress(so_far: FetchProgress) -> None:
        total = so_far.bytes_fetched / so_far.fraction if so_far.fraction else 0
        if context.outer.fetching is None:
            context.journal.write("state", state=FetchingSnapshot.name)
        context.outer.fetching = FetchingSnapshot(so_far.bytes_fetched, int(total))

    try:
        return await _until_here(
            context,
            digest,
            lambda sources, handle: fetch_blob(
                context.store,
                digest,
                sources,
                partial(_dial, context),
                deadline_s=context.timing.fetch_limit_s,
                progress=progress if shown else None,
                handle=handle,
            ),
            unwanted,
            patient=patient,
        )
    finally:
        if shown and context.outer.fetching is not None:
            context.outer.fetching = None
            context.journal.write("state", state=context.shown.name)


async def use(
    context: Context,
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
        if not await trio.to_thread.run_sync(context.store.holds_blob, digest):
            await fetch(context, digest, unwanted=unwanted, patient=patient)
        try:
            return await trio.to_thread.run_sync(reader)
        except (ChunkMissing, ChunkCorrupt) as exc:
            context.journal.write("chunk-damaged", digest=digest, reason=exc.what)
            last = exc
    raise last


async def fetch_loose(
    context: Context,
    digests: Sequence[Digest],
    *,
    unwanted: Callable[[], bool] = never,
    patient: bool = True,
    try_s: float | None = None,
) -> FetchReport:
    """Fetch these chunks into the store. `try_s` is the deadline of a try. Raises StoreError as
    `fetch` does."""
    deadline_s = context.timing.fetch_limit_s if try_s is None else try_s
    return await _until_here(
        context,
        digests[0],
        lambda sources, handle: fetch_chunks(
            context.store,
            digests,
            sources,
            partial(_dial, context),
            deadline_s=deadline_s,
            handle=handle,
        ),
        unwanted,
        patient=patient,
    )


async def _until_here(
    context: Context,
    name: Digest,
    attempt: Fetch,
    unwanted: Callable[[], bool],
    *,
    patient: bool,
) -> FetchReport:
    told, tries, blamed = "", 0, dict[PeerId, float]()
    async with _one_at_a_time(context, name):
        while True:
            tries += 1
            handle: FetchHandle[Endpoint] = FetchHandle()
            fit = partial(usable_sources, context, blamed, set())
            work = partial(attempt, fit(), handle)
            try:
                report = await _run_beside_newcomers(context, work, handle, fit)
            except (TryLater, StoreError) as exc:
                progresses = patient and handle.chunks_fetched > 0
                reason = _why_again(exc, unwanted, progresses)
            else:
                for peer, count_bytes in report.bytes_by_peer.items():
                    context.peers.paths.at_least(peer, count_bytes, report.seconds)
                return report
            finally:
                for peer in handle.blamed:
                    blamed[peer] = context.now()
                    context.journal.write("bad-chunk", peer=peer, digest=name)
            if reason.what != told:
                told = reason.what
                context.journal.write(
                    "fetch-delayed",
                    digest=name,
                    code=reason.code,
                    reason=told,
                    evidence=reason.evidence,
                )
            if tries == TRIES_BEFORE_WORD:
                context.alerts.show(name, Caution(reason.code, told, WAITS_FOR_A_SOURCE))
                context.changes.notify_all()
            await _others_or_later(context)


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


def usable_sources(
    context: Context, blamed: Mapping[PeerId, float], others: set[PeerId]
) -> list[Endpoint]:
    """Return the sources to use: all that are vouched for first, then a few others.

    `others` are the other peers already used in this try; new ones are added to it. They are chosen
    at random, so that a peer cannot ensure that it is chosen. Peers that recently sent a wrong
    chunk are left out.
    """
    since = context.now() - BLAMED_S
    usable = [each for each in sources(context) if blamed.get(each.peer, -math.inf) < since]
    vouched = [each for each in usable if context.peers.is_vouched_for(each.peer)]
    drawn = [each for each in usable if not context.peers.is_vouched_for(each.peer)]
    context.draw.shuffle(drawn)
    new = [each.peer for each in drawn if each.peer not in others]
    others.update(new[: max(0, OTHERS_MAX - len(others))])
    return [*vouched, *(each for each in drawn if each.peer in others)]


async def _run_beside_newcomers(
    context: Context,
    work: Callable[[], FetchReport],
    handle: FetchHandle[Endpoint],
    fit: Callable[[], Sequence[Endpoint]],
) -> FetchReport:
    """Run `work` and return its result. Peers that appear in the meantime become sources too."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer_newcomers, context, handle, fit)
        # Capture the error: otherwise the nursery would wrap it in a group.
        report = await outcome.acapture(in_thread, work, stop=handle.cancel)
        nursery.cancel_scope.cancel()
    return report.unwrap()


async def _offer_newcomers(
    context: Context, handle: FetchHandle[Endpoint], fit: Callable[[], Sequence[Endpoint]]
) -> None:
    """Offer new sources to a running fetch. A node that has just started knows one or two peers
    when it begins to fetch. Most peers have not heard of it, and refuse it until they have its
    certificate.
    """
    while True:
        for source in fit():
            handle.offer(source)
        await _others_or_later(context)


async def _others_or_later(context: Context) -> None:
    """Return when there is another peer to ask, or after `fetch_retry_s`."""
    asked = {source.peer for source in sources(context)}
    with trio.move_on_after(context.timing.fetch_retry_s):
        while {source.peer for source in sources(context)} <= asked:
            await context.changes.wait()


@asynccontextmanager
async def _one_at_a_time(context: Context, name: Digest) -> AsyncIterator[None]:
    while name in context.blobs.in_flight:
        await context.changes.wait()
    context.blobs.in_flight.add(name)
    try:
        yield
    finally:
        context.blobs.in_flight.discard(name)
        context.alerts.clear(name)
        context.changes.notify_all()


def sources(context: Context) -> list[Endpoint]:
    """Return the data planes of all admitted peers that are heard, most recently heard first."""
    now = context.now()
    records = [
        record
        for record in context.peers.table
        if record.endpoint is not None and record.peer != context.me
    ]
    alive = [
        record for record in records if context.peers.detector.status(record.peer, now) != "red"
    ]
    alive.sort(key=lambda record: -record.heard_s)
    told = [record.endpoint for record in alive if context.admission.admits(record.peer)]
    return [endpoint for endpoint in told if endpoint and context.peers.may_be_at(endpoint)]


def _dial(context: Context, endpoint: Endpoint) -> SecureSocket:
    return dial(
        context.plane.credentials,
        endpoint,
        {"purpose": PURPOSE},
        deadline_s=DIAL_S,
        encrypted=context.manifest.encrypted,
    )
