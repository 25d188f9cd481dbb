"""Fetch chunks from many peers at once, in threads. All bytes are verified before they are used.

Chunks that the store already holds are not fetched, so calling an interrupted fetch again resumes
it. `lanes` transfers the bytes, and `picker` decides what to request from which source.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from p2ptrain.dataplane import SecureSocket, Uplink
from p2ptrain.ids import Digest, PeerId
from p2ptrain.store import Store
from p2ptrain.swarm.lanes import STALL_S, Fetch, FetchPlan, SourceT
from p2ptrain.swarm.patience import PATIENCE, Patience
from p2ptrain.swarm.report import FetchProgress, FetchReport, blamed


class FetchHandle(Generic[SourceT]):
    """Lets another thread end a fetch, or offer it more sources."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._early: list[SourceT] = []
        self._fetch: Fetch[SourceT] | None = None

    def cancel(self) -> None:
        """Make the fetch raise TryLater. Chunks that have arrived are kept."""
        with self._lock:
            self._cancelled = True
            fetch = self._fetch
        if fetch is not None:
            fetch.cancel()

    def offer(self, source: SourceT) -> None:
        """Use this source as well. The call has no effect if the source is already in use, or was
        dropped for a reason other than a failed connection.
        """
        with self._lock:
            fetch = self._fetch
            if fetch is None:
                self._early.append(source)
        if fetch is not None:
            fetch.offer(source)

    @property
    def blamed(self) -> tuple[PeerId, ...]:
        """The peers found at fault so far; available even if the fetch fails."""
        return () if self._fetch is None else blamed(self._fetch.dropped)

    @property
    def chunks_fetched(self) -> int:
        """Number of chunks that have arrived so far; available even if the fetch fails."""
        return 0 if self._fetch is None else self._fetch.chunks_fetched

    @property
    def is_over(self) -> bool:
        """Whether the fetch needs no more connections."""
        return self._cancelled or (self._fetch is not None and self._fetch.is_over)

    def bind(self, fetch: Fetch[SourceT]) -> None:
        """Attach the fetch, and apply earlier calls of `offer` and `cancel` to it."""
        with self._lock:
            self._fetch, early, cancelled = fetch, self._early, self._cancelled
        for source in early:
            fetch.offer(source)
        if cancelled:
            fetch.cancel()


def fetch_blob(
    store: Store,
    digest: Digest,
    sources: Sequence[SourceT],
    dial: Callable[[SourceT], SecureSocket],
    *,
    deadline_s: float,
    progress: Callable[[FetchProgress], None] | None = None,
    streams_per_peer: int = 1,
    stall_s: float = STALL_S,
    patience: Patience = PATIENCE,
    handle: FetchHandle[SourceT] | None = None,
    downlink: Uplink | None = None,
    give_back: Callable[[SecureSocket], None] = lambda sock: sock.close(),
) -> FetchReport:
    """Fetch a whole blob into the store: first its manifest, then the chunks that are missing.

    Blocks; call it in a thread. `dial` is called in threads and needs its own deadline; the fetch
    does not wait for a dial that is still running at the end. `progress` is called in threads after
    each chunk and must return quickly. `downlink` limits the rate. `give_back` is called in threads
    with each connection that this fetch no longer needs, and that another fetch can use.

    Raises:
        StoreError: CKPT-NO-SOURCE: no reachable peer has the blob; the evidence lists each source.
            StoreFull and others: this store failed. Fetched chunks stay and are not fetched again.
        ManifestInvalid: the digest is not that of a blob.
        TryLater: cancelled (FETCH-CANCELLED) or not complete within `deadline_s` (FETCH-TIMEOUT).
    """

    def more_after(arrived: Digest) -> list[Digest]:
        return _missing(store, digest) if arrived == digest else []

    with store.pin([digest]):
        has_manifest = store.has_chunk(digest)
        wanted = _missing(store, digest) if has_manifest else [digest]
        plan = FetchPlan(
            wanted,
            sources,
            dial,
            more_after,
            deadline_s,
            stall_s,
            streams_per_peer,
            progress,
            patience,
            is_urgent=not has_manifest,
            downlink=downlink,
            give_back=give_back,
        )
        return _run(Fetch(store, plan), handle)


def fetch_chunks(
    store: Store,
    digests: Iterable[Digest],
    sources: Sequence[SourceT],
    dial: Callable[[SourceT], SecureSocket],
    *,
    deadline_s: float,
    progress: Callable[[FetchProgress], None] | None = None,
    streams_per_peer: int = 1,
    stall_s: float = STALL_S,
    handle: FetchHandle[SourceT] | None = None,
    downlink: Uplink | None = None,
    give_back: Callable[[SecureSocket], None] = lambda sock: sock.close(),
) -> FetchReport:
    """Fetch chunks that do not form a blob, such as the data blocks of a lease. Arguments and
    errors are those of `fetch_blob`.
    """
    wanted = list(dict.fromkeys(digests))
    with store.pin(wanted):
        missing = _shuffled(digest for digest in wanted if not store.has_chunk(digest))
        plan = FetchPlan(
            missing,
            sources,
            dial,
            lambda _: [],
            deadline_s,
            stall_s,
            streams_per_peer,
            progress,
            downlink=downlink,
            give_back=give_back,
        )
        return _run(Fetch(store, plan), handle)


def _run(fetch: Fetch[SourceT], handle: FetchHandle[SourceT] | None) -> FetchReport:
    if handle is not None:
        handle.bind(fetch)
    return fetch.run()


def _missing(store: Store, digest: Digest) -> list[Digest]:
    store.manifest(digest).sizes()  # refuse a contradictory manifest before fetching
    return _shuffled(store.missing_chunks(digest))


def _shuffled(digests: Iterable[Digest]) -> list[Digest]:
    """Return the digests in random order, so that peers that start together soon hold different
    chunks and can exchange them.
    """
    drawn = list(digests)
    random.shuffle(drawn)
    return drawn
