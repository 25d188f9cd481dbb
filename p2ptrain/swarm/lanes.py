"""The threads of one fetch: a *lane* is a connection to a source, with its own thread.

Each lane gets chunks to request from the picker, keeps a few requests open, and checks what arrives
against the requested digest. Other threads store correct chunks while the lane continues to read. A
lane that fails is dropped for this fetch, and its open requests go to other lanes. A peer that
sends a wrong chunk loses all its lanes.

The picker decides what to request; this module handles threads and sockets. It knows nothing about
blobs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from p2ptrain.dataplane import SecureSocket, SendPriority, Uplink
from p2ptrain.errors import (
    ChunkCorrupt,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    StoreError,
    TryLater,
    counted,
)
from p2ptrain.ids import Digest, PeerId
from p2ptrain.store import CheckedChunk, Store, checked
from p2ptrain.swarm.patience import PATIENCE, Patience
from p2ptrain.swarm.picker import Picker
from p2ptrain.swarm.report import DroppedPeer, FetchProgress, FetchReport, drop_reason
from p2ptrain.swarm.wire import receive_response, send_request
from p2ptrain.swarm.write_behind import WriteBehind

LANES_MAX = 64
"""Maximum number of lanes of a fetch. More connections are not faster, and each has a thread and a
buffer for one chunk."""

STALL_S = 60.0
"""Seconds that a source may take for a slice of 64 KiB. The picker tries another source much
sooner."""

RECONSIDER_S = 0.01
"""Minimum seconds before a thread asks the picker again. Without a minimum, rounding errors in
times could make the thread ask in a busy loop."""


RATE_LOOK_S = 1.0
"""Maximum seconds until a lane that waits for the rate limit looks again: the limit may change."""


class FetchSource(Protocol):
    """Anything that the caller's `dial` understands, such as a dataplane Endpoint."""

    @property
    def peer(self) -> PeerId: ...


SourceT = TypeVar("SourceT", bound=FetchSource)


@dataclass(frozen=True, slots=True)
class Lane:
    """One of a peer's connections."""

    peer: PeerId
    stream: int


@dataclass(frozen=True, slots=True)
class FetchPlan(Generic[SourceT]):
    """The chunks that a fetch should get, its sources, and its limits.

    `more_after(digest)` is called when a chunk has been stored, and returns further chunks to
    fetch. With `is_urgent`, the chunks in `wanted` are short and further chunks depend on them, as
    on a manifest. `progress` is called after each chunk. `downlink` limits the rate of arrival.
    `give_back` takes each connection that has no open requests at the end.
    """

    wanted: Sequence[Digest]
    sources: Sequence[SourceT]
    dial: Callable[[SourceT], SecureSocket]
    more_after: Callable[[Digest], Sequence[Digest]]
    deadline_s: float
    stall_s: float
    streams_per_peer: int
    progress: Callable[[FetchProgress], None] | None
    patience: Patience = PATIENCE
    is_urgent: bool = False
    downlink: Uplink | None = None
    give_back: Callable[[SecureSocket], None] = lambda sock: sock.close()

    def lanes(self) -> dict[Lane, SourceT]:
        """Return one lane for each source, then a second one for each, and so on up to the
        limit.
        """
        lanes = {
            Lane(source.peer, stream): source
            for stream in range(self.streams_per_peer)
            for source in self.sources
        }
        return dict(list(lanes.items())[:LANES_MAX])


class Fetch(Generic[SourceT]):
    """The state of one fetch, shared by its lanes and guarded by `_changed`."""

    def __init__(
        self, store: Store, plan: FetchPlan[SourceT], write_behind: WriteBehind | None = None
    ) -> None:
        self._store = store
        self._plan = plan
        self._lanes = plan.lanes()
        self._changed = threading.Condition()
        self._picker = Picker(self._lanes, patience=plan.patience)
        self._picker.want(plan.wanted, urgent=plan.is_urgent)
        self._sockets: dict[Lane, SecureSocket] = {}
        self._idle: set[Lane] = set()
        """The connected lanes without open requests."""
        self._dropped: dict[PeerId, DroppedPeer] = {}
        self._lacked: Counter[PeerId] = Counter()
        self._write_behind = write_behind or WriteBehind(len(self._lanes))
        self._pool: ThreadPoolExecutor | None = None
        """The lanes' threads; None until the fetch runs."""
        self._telling = threading.Lock()
        self._bytes_by_peer: Counter[PeerId] = Counter()
        self.chunks_fetched = 0
        """Number of chunks that this fetch has added to the store."""
        self._storing = 0
        """Number of chunks that the picker counts as arrived but that are not in the store yet."""
        self._over = False
        self._timed_out = False
        self._failure: BaseException | None = None
        downlink = plan.downlink
        self._share = None if downlink is None else downlink.share(SendPriority.SWARM)

    def run(self) -> FetchReport:
        """Fetch all wanted chunks. Blocks; raises the errors of `fetch_blob`."""
        started = time.monotonic()
        if not self._picker.done and self._lanes:
            self._run_lanes(started + self._plan.deadline_s)
        if self._share is not None:
            self._share.close()
        self._store.make_durable()
        self._judge()
        return FetchReport(
            self.chunks_fetched,
            dict(self._bytes_by_peer),
            time.monotonic() - started,
            tuple(self._dropped.values()),
        )

    def cancel(self) -> None:
        """End the fetch from another thread. `run` raises TryLater unless it has ended already."""
        with self._changed:
            if not self._is_over():
                self._failure = TryLater("the fetch was cancelled", code="FETCH-CANCELLED")
        self._stop()

    def offer(self, source: SourceT) -> None:
        """Use this source as well, unless it is in use. Call from another thread. A dropped source
        is used again only if its connection had failed: the source may not have known us yet, or
        may have restarted since."""
        with self._changed:
            known, dropped = self._lanes_of(source.peer), self._dropped.get(source.peer)
            if known and (dropped is None or not dropped.fault.is_passing):
                return
            self._dropped.pop(source.peer, None)
            for lane in known or self._new_lanes(source.peer):
                self._lanes[lane] = source
                self._picker.add(lane)
                self._begin(lane)

    @property
    def dropped(self) -> tuple[DroppedPeer, ...]:
        """The sources dropped so far."""
        with self._changed:
            return tuple(self._dropped.values())

    def _new_lanes(self, peer: PeerId) -> list[Lane]:
        lanes = [Lane(peer, stream) for stream in range(self._plan.streams_per_peer)]
        lanes = lanes[: LANES_MAX - len(self._lanes)]
        for _ in lanes:
            self._write_behind.add_lane()
        return lanes

    def _begin(self, lane: Lane) -> None:
        if self._pool is not None and not self._over:
            ended = self._pool.submit(self._run_lane, lane, self._lanes[lane])
            ended.add_done_callback(self._thread_ended)

    def _run_lanes(self, deadline: float) -> None:
        pool = ThreadPoolExecutor(LANES_MAX, "swarm")
        with self._changed:
            self._pool = pool
            for lane in self._lanes:
                self._begin(lane)
            while not self._is_over() and (remaining_s := deadline - time.monotonic()) > 0:
                self._changed.wait(remaining_s)
            self._timed_out = not self._is_over()
        self._stop()
        # Do not wait for lanes that are still dialling. These lanes end at `dial`'s own deadline,
        # and then see that the fetch is over.
        pool.shutdown(wait=False)
        with self._changed:
            self._changed.wait_for(lambda: not self._sockets)
        self._write_behind.close()

    def _judge(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._picker.done:
            return
        lacks = [
            f"{peer} does not have {count} of the chunks" for peer, count in self._lacked.items()
        ]
        evidence = [*map(str, self._dropped.values()), *lacks]
        if self._timed_out:
            raise TryLater(
                f"{counted(self._picker.left, 'chunk is', 'chunks are')} still missing after "
                f"{self._plan.deadline_s:.0f} s",
                code="FETCH-TIMEOUT",
                evidence=evidence,
                likely="the sources or the path to them are slow",
                do="nothing: the chunks that arrived are kept, and the node requests the rest",
            )
        raise StoreError(
            f"no source has the chunks that are still missing ({self._picker.left})",
            code="CKPT-NO-SOURCE",
            evidence=evidence or ["no source is known"],
            likely="the peers that have them are not connected, or have only newer snapshots",
            do="nothing: the node tries again later, with the peers that it is connected to then",
        )

    # The methods below run in the threads of lanes.

    def _run_lane(self, lane: Lane, source: SourceT) -> None:
        try:
            sock = self._plan.dial(source)
        except P2PTrainError as exc:
            self._drop(lane, exc, connected=False)
            return
        with self._changed:
            over = self._over
            if not over:
                self._sockets[lane] = sock
                self._idle.add(lane)
        if over:
            self._plan.give_back(sock)
            return
        try:
            self._request_chunks(lane, sock)
        except (PeerError, RemoteProtocolError, ChunkCorrupt) as exc:
            self._idle.discard(lane)
            self._drop(lane, exc, connected=True)
        finally:
            if lane in self._idle:
                self._plan.give_back(sock)
            else:
                sock.close()
            with self._changed:
                self._idle.discard(lane)
                if self._sockets.get(lane) is sock:  # it may have been replaced by a new one
                    del self._sockets[lane]
                self._changed.notify_all()

    def _thread_ended(self, ended: Future[None]) -> None:
        """Fail the whole fetch on an error that is not a peer's fault, such as a full disk."""
        exc = ended.exception()
        if exc is not None:
            with self._changed:
                self._failure = self._failure or exc
            self._stop()

    def _request_chunks(self, lane: Lane, sock: SecureSocket) -> None:
        buffer = self._write_behind.buffer()
        asked: deque[Digest] = deque()
        try:
            while True:
                assigned = self._assigned(lane, idle=not asked)
                sock.set_deadline(self._plan.stall_s)
                for digest in assigned:
                    send_request(sock, digest)
                    asked.append(digest)
                if not asked:
                    return
                chunk = receive_response(sock, buffer, self._plan.stall_s)
                digest = asked.popleft()
                if not asked:
                    self._idle.add(lane)
                if chunk is not None:
                    self._keep_to_the_rate(len(chunk))
                if chunk is None:
                    self._note_lack(lane, digest)
                elif self._is_first(lane, right := checked(chunk, digest)):
                    storing = self._write_behind.store(buffer, partial(self._put, lane, right))
                    storing.add_done_callback(self._thread_ended)
                    buffer = self._write_behind.buffer()
        finally:
            self._write_behind.give_back(buffer)

    def _keep_to_the_rate(self, count: int) -> None:
        """Wait until the limit allows the `count` bytes that have just arrived. Meanwhile the lane
        does not read, so its source does not send either."""
        if self._share is None:
            return
        ticket = self._share.request_ticket(count)
        with self._changed:
            while not self._over and (wait_s := self._share.wait_s(ticket)) > 0:
                self._changed.wait(min(wait_s, RATE_LOOK_S))

    def _assigned(self, lane: Lane, *, idle: bool) -> list[Digest]:
        """Return the chunks to request now. An idle lane waits until there is one, or returns []
        when the fetch is over.
        """
        with self._changed:
            while not self._is_over():
                now = time.monotonic()
                assigned = list(iter(partial(self._picker.next, lane, now), None))
                if assigned or not idle:
                    if assigned:
                        self._idle.discard(lane)
                    return assigned
                reconsider_at = self._picker.reconsider_at(lane, now)
                wait_s = None if reconsider_at is None else max(RECONSIDER_S, reconsider_at - now)
                self._changed.wait(wait_s)
            return []

    def _is_first(self, lane: Lane, chunk: CheckedChunk) -> bool:
        """Return whether this copy arrived first and so should be stored."""
        with self._changed:
            is_first = self._picker.arrived(lane, chunk.digest, time.monotonic())
            self._storing += is_first
            self._changed.notify_all()
        return is_first

    def _put(self, lane: Lane, chunk: CheckedChunk) -> None:
        """Store a chunk. Runs in a thread of `WriteBehind`."""
        self._store.put_checked(chunk)
        more = self._plan.more_after(chunk.digest)
        with self._telling:  # so that progress never decreases
            with self._changed:
                self._picker.want(more)
                self._storing -= 1
                self.chunks_fetched += 1
                self._bytes_by_peer[lane.peer] += len(chunk.data)
                left = self._picker.left + self._storing
                progress = FetchProgress(self.chunks_fetched, left, self._bytes_by_peer.total())
                self._changed.notify_all()
            if self._plan.progress is not None:
                self._plan.progress(progress)

    def _note_lack(self, lane: Lane, digest: Digest) -> None:
        with self._changed:
            self._lacked[lane.peer] += 1
            self._picker.lacks(lane, digest, time.monotonic())
            for other in self._lanes_of(lane.peer):
                self._picker.lacks_too(other, digest)
            self._changed.notify_all()

    def _drop(self, lane: Lane, exc: P2PTrainError, *, connected: bool) -> None:
        dropped = DroppedPeer(lane.peer, drop_reason(exc, connected=connected), exc.what)
        with self._changed:
            if self._over:
                return  # we closed the connection ourselves
            given_up = self._lanes_of(lane.peer) if dropped.fault.is_blame else [lane]
            for other in given_up:
                self._picker.drop(other)
                if other in self._sockets:
                    self._idle.discard(other)
                    self._sockets[other].shutdown()
            if self._picker.lanes.isdisjoint(self._lanes_of(lane.peer)):
                self._dropped.setdefault(lane.peer, dropped)
            self._changed.notify_all()

    def _lanes_of(self, peer: PeerId) -> list[Lane]:
        return [lane for lane in self._lanes if lane.peer == peer]

    @property
    def is_over(self) -> bool:
        """Whether no more connections are needed."""
        return self._over

    def _is_over(self) -> bool:
        # A chunk that is being stored may be a manifest, and then more chunks are wanted.
        return self._over or (not self._storing and (self._picker.done or self._picker.stuck))

    def _stop(self) -> None:
        with self._changed:
            self._over = True
            for lane, sock in self._sockets.items():
                if lane not in self._idle:
                    sock.shutdown()
            self._changed.notify_all()
