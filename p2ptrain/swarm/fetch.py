"""Fetching chunks from many peers at once, in threads, each byte checked before it is believed.

What is held already is not fetched, so a fetch that was cut short resumes by being called again.
How the bytes travel is in `lanes`, and what is asked of whom in `picker`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from p2ptrain.dataplane import SecureSocket
from p2ptrain.ids import Digest, PeerId
from p2ptrain.store import Store
from p2ptrain.swarm.lanes import STALL_S, Fetch, FetchPlan, SourceT
from p2ptrain.swarm.report import FetchProgress, FetchReport, blamed


class FetchHandle(Generic[SourceT]):
    """What another thread may do to a fetch: end it, or offer it more sources."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._early: list[SourceT] = []
        self._fetch: Fetch[SourceT] | None = None

    def cancel(self) -> None:
        """The fetch raises TryLater, and keeps what it has got."""
        with self._lock:
            self._cancelled = True
            fetch = self._fetch
        if fetch is not None:
            fetch.cancel()

    def offer(self, source: SourceT) -> None:
        """Have it asked as well. It may be offered again and again: one that is asked already, or
        was dropped for more than its connection, is left alone.
        """
        with self._lock:
            fetch = self._fetch
            if fetch is None:
                self._early.append(source)
        if fetch is not None:
            fetch.offer(source)

    @property
    def blamed(self) -> tuple[PeerId, ...]:
        """The peers to report so far, also where the fetch did not succeed."""
        with self._lock:
            fetch = self._fetch
        return () if fetch is None else blamed(fetch.dropped)

    @property
    def chunks_fetched(self) -> int:
        """How many have come so far, also where the fetch did not succeed."""
        with self._lock:
            fetch = self._fetch
        return 0 if fetch is None else fetch.chunks_fetched

    def bind(self, fetch: Fetch[SourceT]) -> None:
        """For the fetch: what was said before it began is told it now."""
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
    handle: FetchHandle[SourceT] | None = None,
) -> FetchReport:
    """Bring a blob into the store whole: its manifest first, then the chunks that are not held.

    Blocks; call it in a thread. `dial` is called in threads and has a deadline of its own: one that
    still dials when the rest is over is left behind to end by itself. `progress` is called in
    threads after each chunk and must be quick.

    Raises:
        StoreError: CKPT-NO-SOURCE, nobody that could be reached has it; evidence lists each source.
        StoreFull and others: from this store. What was fetched stays and is not fetched again.
        ManifestInvalid: the digest names something that is not a blob.
        TryLater: cancelled (FETCH-CANCELLED) or not complete in `deadline_s` (FETCH-TIMEOUT).
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
            progress or _nobody_listens,
            is_urgent=not has_manifest,
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
) -> FetchReport:
    """The same for bare chunks, such as the data blocks of a lease. They are durable on return."""
    wanted = list(dict.fromkeys(digests))
    with store.pin(wanted):
        plan = FetchPlan(
            _in_an_order_of_our_own(digest for digest in wanted if not store.has_chunk(digest)),
            sources,
            dial,
            lambda _: [],
            deadline_s,
            stall_s,
            streams_per_peer,
            progress or _nobody_listens,
        )
        return _run(Fetch(store, plan), handle)


def _run(fetch: Fetch[SourceT], handle: FetchHandle[SourceT] | None) -> FetchReport:
    if handle is not None:
        handle.bind(fetch)
    return fetch.run()


def _missing(store: Store, digest: Digest) -> list[Digest]:
    store.manifest(digest).sizes()  # refuses a manifest that contradicts itself, before any byte
    return _in_an_order_of_our_own(store.missing_chunks(digest))


def _in_an_order_of_our_own(digests: Iterable[Digest]) -> list[Digest]:
    """Peers that begin together have something to give to each other if each begins elsewhere."""
    drawn = list(digests)
    random.shuffle(drawn)
    return drawn


def _nobody_listens(progress: FetchProgress) -> None:
    pass
