"""Fetch blobs (manifests with their chunks) and single chunks from peers, and repeat failed
fetches.

Only one fetch of a digest runs at a time: a second caller waits for the first to end. If no peer
has the bytes now, the fetch is repeated when a new peer appears or after a short time. If the store
cannot take the bytes, for instance because the disk is full, the error is raised at once.
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
from p2ptrain.errors import ChunkCorrupt, ChunkMissing, PeerUnreachable, StoreError, TryLater
from p2ptrain.ids import Digest, PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import CHUNKS
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
"""Deadline in seconds for opening a connection with a source, in any way."""

CLOSE_OLD_S = 2.0
"""Interval in seconds at which old connections are closed."""

TRIES_BEFORE_WORD = 4
"""Number of failed tries after which the user is warned. A starting node has not heard yet of the
peers that have the bytes, so its first tries often fail."""

WAITS_FOR_A_SOURCE = "the node keeps asking, and waits for a peer that has them"

BLAMED_S = 60.0
"""Seconds for which a peer that sent a wrong chunk is not asked. Without this pause, a liar could
waste 4 MiB in every try, that is, every 2 s."""

OTHERS_MAX = 16
"""Maximum number of sources of one try that are neither members nor on the organiser's allowlist. A
fetch asks up to 64 peers at once, and in an open run, silent peers could occupy all of these
places. The number is not 0, so that newcomers that start together can send each other chunks."""

READS_MAX = 3
"""Maximum number of attempts to read a blob. After a failed attempt, damaged chunks are fetched
again. A disk on which that does not help is broken."""

NO_SOURCE = "CKPT-NO-SOURCE"
"""The error code if no peer sends the bytes, whether or not a peer has them."""

Result = TypeVar("Result")


def never() -> bool:
    return False


def after(context: Context, seconds: float) -> Callable[[], bool]:
    """Return a function that says whether `seconds` have passed since `after` was called."""
    since = context.now()
    return lambda: context.now() > since + seconds


async def fetch(
    context: Context,
    digest: Digest,
    *,
    shown: bool = False,
    unwanted: Callable[[], bool] = never,
    patient: bool = True,
) -> FetchReport:
    """Fetch the blob `digest` into the store. `shown`: whether the status shows the progress.

    `unwanted` is called when a try fails, and returns whether to give up instead of trying again.
    If `patient`, it is not called after a try that reached its deadline but fetched some chunks.

    Raises StoreError: the store cannot take the blob; the digest does not name a blob; or
    `unwanted` returned True (CKPT-NO-SOURCE)."""

    def progress(so_far: FetchProgress) -> None:
        total = so_far.bytes_fetched / so_far.fraction if so_far.fraction else 0
        if context.outer.fetching is None:
            context.journal.write("state", state=FetchingSnapshot.name)
        context.outer.fetching = FetchingSnapshot(so_far.bytes_fetched, int(total))

    attempt = partial(fetch_blob, context.store, digest, progress=progress if shown else None)
    try:
        return await _until_here(context, digest, attempt, unwanted, patient, None)
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
    """Fetch the blob `digest` if necessary, and run `reader`, which reads it, in a thread.

    Raises StoreError: as for `fetch`, or the blob is still damaged after READS_MAX tries."""
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
    """Fetch single chunks into the store. `try_s` is the deadline of each try in seconds. For the
    other arguments and StoreError, see `fetch`."""
    attempt = partial(fetch_chunks, context.store, digests)
    return await _until_here(context, digests[0], attempt, unwanted, patient, try_s)


async def _until_here(
    context: Context,
    name: Digest,
    attempt: Callable[..., FetchReport],
    unwanted: Callable[[], bool],
    patient: bool,
    try_s: float | None,
) -> FetchReport:
    """Call `attempt` until it succeeds, and return its report. Each call gets the sources, a
    function that dials one, a deadline and a handle. For the other arguments and the errors, see
    `fetch` and `fetch_loose`."""
    told, tries, blamed = "", 0, dict[PeerId, float]()
    deadline_s = context.timing.fetch_limit_s if try_s is None else try_s
    token = trio.lowlevel.current_trio_token()
    async with _one_at_a_time(context, name):
        while True:
            tries += 1
            handle: FetchHandle[Endpoint] = FetchHandle()
            fit = partial(usable_sources, context, blamed, set())
            dial_one = partial(_connection, context, token, handle)
            limits = {"deadline_s": deadline_s, "downlink": context.plane.downlink}
            give_back = context.blobs.connections.give_back
            work = partial(attempt, fit(), dial_one, handle=handle, give_back=give_back, **limits)
            try:
                report = await _run_beside_newcomers(context, work, handle, fit)
            except (TryLater, StoreError) as exc:
                progresses = patient and handle.chunks_fetched > 0
                reason = _why_again(exc, unwanted, progresses)
            else:
                note_fetched(context, report.bytes_by_peer, report.seconds)
                return report
            finally:
                for peer in handle.blamed:
                    blamed[peer] = context.now()
                    context.journal.write("bad-chunk", peer=peer, digest=name)
            if reason.what != told:
                told, code, evidence = reason.what, reason.code, reason.evidence
                context.journal.write(
                    "fetch-delayed", digest=name, code=code, reason=told, evidence=evidence
                )
            if tries == TRIES_BEFORE_WORD:
                context.alerts.show(name, Caution(reason.code, told, WAITS_FOR_A_SOURCE))
                context.changes.notify_all()
            await _others_or_later(context)


def note_fetched(context: Context, bytes_by_peer: Mapping[PeerId, int], seconds: float) -> None:
    """Note the bytes that came from each peer within `seconds`."""
    context.blobs.fetched_bytes += sum(bytes_by_peer.values())
    for peer, count_bytes in bytes_by_peer.items():
        context.peers.paths.at_least(peer, count_bytes, seconds)


def _why_again(
    exc: TryLater | StoreError, unwanted: Callable[[], bool], progresses: bool
) -> TryLater | StoreError:
    """Return `exc` if the try that failed with it must be repeated. Otherwise raise StoreError."""
    if isinstance(exc, TryLater):
        if not progresses and unwanted():
            raise StoreError(exc.what, code=NO_SOURCE, evidence=exc.evidence) from exc
    elif exc.code != NO_SOURCE or unwanted():
        raise exc
    return exc


def usable_sources(
    context: Context, blamed: Mapping[PeerId, float], others: set[PeerId]
) -> list[Endpoint]:
    """Return the sources (data planes) to use: all vouched for (`PeerDirectory`), then some others.

    `others`: the peers not vouched for that this try has used already; this function adds the new
    ones. They are chosen at random, so that a peer cannot make sure that it is chosen. `blamed`:
    when each peer last sent a wrong chunk. Peers that did so recently are left out."""
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
    """Run `work` and return its result. Peers that appear in the meantime become sources too: a new
    node knows one or two peers when it begins to fetch, and most peers refuse it until they have
    received its certificate."""

    async def offer_newcomers() -> None:
        while True:
            for source in fit():
                handle.offer(source)
            await _others_or_later(context)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(offer_newcomers)
        # Capture the error: otherwise the nursery would wrap it in a group.
        report = await outcome.acapture(in_thread, work, stop=handle.cancel)
        nursery.cancel_scope.cancel()
    return report.unwrap()


async def _others_or_later(context: Context) -> None:
    """Wait until there is another peer to ask, but no longer than `Timing.fetch_retry_s`."""
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
    """Return the data planes of all admitted peers that are up, most recently heard first."""
    peers, now = context.peers, context.now()
    return [
        record.endpoint
        for record in sorted(peers.table, key=lambda record: -record.heard_s)
        if record.endpoint is not None
        and record.peer != context.me
        and peers.detector.status(record.peer, now) != "red"
        and context.admission.admits(record.peer)
        and peers.may_be_at(record.endpoint)
    ]


async def keep_connections(context: Context) -> None:
    """Keep the connections of fetches for the next fetches, until cancelled."""
    kept = context.blobs.connections
    kept.begin()
    try:
        while True:
            await trio.sleep(CLOSE_OLD_S)
            kept.close_old()
    finally:
        kept.close()


def _connection(
    context: Context,
    token: trio.lowlevel.TrioToken,
    handle: FetchHandle[Endpoint],
    endpoint: Endpoint,
) -> SecureSocket:
    """Return a connection for requests of chunks, in a thread of the fetch with this handle.
    Raises PeerError, RemoteProtocolError."""
    return connection_with(context, token, endpoint, lambda: not handle.is_over)


def connection_with(
    context: Context,
    token: trio.lowlevel.TrioToken,
    endpoint: Endpoint,
    wanted: Callable[[], bool],
) -> SecureSocket:
    """Return a connection for requests of chunks, in a thread: a kept one, or a new one while it is
    `wanted`. Return it to `context.blobs.connections`, or close it. Raises PeerError,
    RemoteProtocolError."""
    return context.blobs.connections.take(
        endpoint.peer,
        partial(_open_connection, context, token, endpoint),
        wait_s=DIAL_S,
        wanted=wanted,
    )


def _open_connection(
    context: Context, token: trio.lowlevel.TrioToken, endpoint: Endpoint
) -> SecureSocket:
    """Open a connection for requests of chunks, in a thread of the fetch. Members and visitors also
    connect to members in other ways; for these ways, the event loop of `token` is needed.

    Raises PeerError, RemoteProtocolError."""
    hello, peer = {"purpose": PURPOSE}, endpoint.peer
    open_one = context.peers.punching.open
    if open_one is None or not context.peers.may_fetch_in_every_way(context.me, peer):
        return dial(
            context.plane.credentials,
            endpoint,
            hello,
            deadline_s=DIAL_S,
            encrypted=context.manifest.encrypted,
        )
    try:
        return trio.from_thread.run(open_one, endpoint, hello, CHUNKS, DIAL_S, trio_token=token)
    except (trio.Cancelled, trio.RunFinishedError) as exc:
        raise PeerUnreachable("this node is stopping", peer=peer) from exc
