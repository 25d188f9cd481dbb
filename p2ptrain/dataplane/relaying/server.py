"""The relay: a listener's handler that joins two peers which both dial this node.

The listener has authenticated both peers. Each of them says in its hello with whom it wants to be
joined, and for what (`messages`). When both have come and `policy` allows it, the relay answers
both, leaves TLS on both connections, and the kernel moves the bytes from then on (`splicer`). Those
bytes are the TLS connection between the two peers, which the relay cannot read or change unseen.

Each connection keeps its listener's thread, which waits until the pair has ended. A connection that
waits for its other end is dropped after a few seconds, and at once if it sends anything or ends.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from p2ptrain.dataplane.relaying.messages import (
    Refusal,
    Refused,
    RelayKey,
    RelayRequest,
    encode_answer,
)
from p2ptrain.dataplane.relaying.pace import Pace
from p2ptrain.dataplane.relaying.policy import (
    EndedEdge,
    RelayBook,
    RelayLimits,
    RelayTotals,
    RelayView,
    is_idle,
    is_over,
    judge,
)
from p2ptrain.dataplane.relaying.splicer import IDLE_S, SplicedPair, Splicer, can_splice
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.errors import PeerError, PeerLost, RemoteProtocolError
from p2ptrain.ids import PeerId

LOOK_S = 0.1
"""Interval in seconds at which a waiting connection is checked."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class RelayTimes:
    """`wait_s`: how long a connection waits for its other end. `answer_s`: how long the two ends
    may take to receive the answer. `grace_s`: how long an edge may go on once nothing allows it any
    more, since participants finish within a few seconds of each other. `idle_s`: see `Splicer`."""

    wait_s: float = 4.0
    answer_s: float = 2.0
    grace_s: float = 10.0
    idle_s: float = IDLE_S


class RelayLog:
    """Receives what the relay does. All methods may be called from any thread."""

    def joined(self, request: RelayRequest) -> None:
        """A stream was joined."""

    def ended(self, ended: EndedEdge, reason: str) -> None:
        """The last stream of an edge has ended. `reason` is "" if both ends closed it."""

    def refused(self, request: RelayRequest, refused: Refused) -> None: ...


@dataclass(slots=True, eq=False)
class _Meeting:
    """Two connections with the same key. `ready` are the sides that have left TLS. `left` counts
    the threads that are done with the meeting."""

    requests: tuple[RelayRequest, RelayRequest]
    connections: tuple[PeerSocket, PeerSocket]
    ready: set[int] = field(default_factory=set)
    has_failed: bool = False
    left: int = 0
    pair: SplicedPair | None = None


@dataclass(slots=True, eq=False)
class _Half:
    """A connection that waits for its other end."""

    request: RelayRequest
    connection: PeerSocket
    is_allowed: bool = False
    refused: Refused | None = None
    meeting: _Meeting | None = None
    side: int = 0


class RelayServer:
    """Relays while its `with` block lasts. Register it with a listener for PURPOSE, and end the
    block before the listener's. `view` returns what this node's ledger says; it is called from many
    threads. If this system cannot splice, nothing is offered, and every request is refused."""

    def __init__(
        self,
        view: Callable[[], RelayView],
        limits: RelayLimits | None = None,
        *,
        pace: Pace | None = None,
        times: RelayTimes | None = None,
        log: RelayLog | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        offered = limits or RelayLimits()
        self._book = RelayBook(offered if can_splice() else RelayLimits(edges=0))
        self._times = times or RelayTimes()
        self._view = view
        self._pace = pace
        self._log = log or RelayLog()
        self._now = now
        self._wall = wall
        self._splicer = Splicer(pace, idle_s=self._times.idle_s) if can_splice() else None
        self._changed = threading.Condition()
        self._waiting: dict[tuple[RelayKey, PeerId], _Half] = {}
        self._connections = 0
        self._closing = False

    def __enter__(self) -> Self:
        if self._splicer is not None:
            self._splicer.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        """End all pairs, and let the threads of all connections return."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._pace is not None:
            self._pace.close()
        if self._splicer is not None:
            self._splicer.__exit__(*raised)

    def set_limit(self, limit_bytes_per_s: float | None) -> None:
        """Change the user's upload limit, of which relaying gets a share."""
        if self._pace is not None:
            self._pace.set_limit(limit_bytes_per_s)

    @property
    def offered(self) -> int:
        """How many edges this node offers to relay, free or in use."""
        with self._changed:
            return self._book.offered(self._day())

    def totals(self) -> RelayTotals:
        with self._changed:
            return self._book.totals(self._day())

    def __call__(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        """Serve one connection. Raises RemoteProtocolError: the hello is malformed. Raises
        PeerError: the connection ended while it waited."""
        request = RelayRequest.from_hello(hello, connection.peer)
        half = _Half(request, connection)
        with self._changed:
            self._connections += 1
        try:
            self._serve(half)
        finally:
            with self._changed:
                self._connections -= 1

    def _serve(self, half: _Half) -> None:
        half.connection.set_deadline(self._times.wait_s + self._times.answer_s)
        refused = self._wait_for_other_end(half)
        if refused is not None:
            self._log.refused(half.request, refused)
            half.connection.send_frame(encode_answer(refused))
            return
        assert half.meeting is not None
        try:
            self._relay(half, half.meeting)
        finally:
            self._leave(half.meeting)

    def _wait_for_other_end(self, half: _Half) -> Refused | None:
        """Return None once `half.meeting` is set. Raises PeerLost, RemoteProtocolError."""
        request, ends = half.request, self._now() + self._times.wait_s
        place = request.key, request.peer
        with self._changed:
            if refused := self._admit(half):
                return refused
            replaced = self._waiting.pop(place, None)
            if replaced is not None:
                replaced.refused = Refused(Refusal.OTHER, "the same peer has asked again")
            self._waiting[place] = half
            try:
                while True:
                    if found := half.meeting or half.refused or self._try_to_meet(half):
                        return found if isinstance(found, Refused) else None
                    if self._closing or self._now() >= ends:
                        return Refused(Refusal.ABSENT, self._why_absent(half))
                    self._changed.wait(LOOK_S)
                    if half.meeting is None:
                        _expect_silence(half.connection)
            finally:
                if self._waiting.get(place) is half:
                    del self._waiting[place]

    def _admit(self, half: _Half) -> Refused | None:
        view = self._view()
        verdict = judge(half.request, view)
        if isinstance(verdict, Refused):
            return verdict
        others, now, visitors = self._connections - 1, self._now(), view.has_visitor(half.request)
        limited = self._book.ask(
            half.request,
            connections=others,
            now=now,
            day=self._day(),
            is_visitors=visitors,
            idle=partial(is_idle, view=view),
        )
        return limited if isinstance(limited, Refused) else None

    def _try_to_meet(self, half: _Half) -> Refused | _Meeting | None:
        """Join `half` with its other end if that waits too, and both are allowed. The caller holds
        the lock."""
        request, view = half.request, self._view()
        verdict = judge(request, view)
        if isinstance(verdict, Refused):
            return verdict
        half.is_allowed = verdict is None
        other = self._waiting.get((request.key, request.other))
        if other is None or other.request.other != request.peer:
            return None
        if not half.is_allowed or not other.is_allowed or other.refused or other.meeting:
            return None
        visitors = view.has_visitor(request)
        if refused := self._book.begin(
            request.edge,
            now=self._now(),
            day=self._day(),
            is_visitors=visitors,
            idle=partial(is_idle, view=view),
        ):
            other.refused = refused
            self._changed.notify_all()
            return refused
        meeting = _Meeting((other.request, request), (other.connection, half.connection))
        other.meeting = half.meeting = meeting
        other.side, half.side = 0, 1
        del self._waiting[request.key, request.other], self._waiting[request.key, request.peer]
        self._changed.notify_all()
        return meeting

    def _why_absent(self, half: _Half) -> str:
        if self._closing:
            return "this node is stopping"
        if not half.is_allowed:
            return "this relay has not heard of this attempt"
        return "the other end did not come in time"

    def _relay(self, half: _Half, meeting: _Meeting) -> None:
        """Answer, and return when the pair has ended. Raises PeerError, RemoteProtocolError."""
        try:
            half.connection.set_deadline(self._times.answer_s)
            half.connection.send_frame(encode_answer(None))
            half.connection.lend_descriptor()
        except (PeerError, RemoteProtocolError):
            with self._changed:
                meeting.has_failed = True
                self._changed.notify_all()
            raise
        pair = self._pair(half, meeting)
        if pair is None:
            return
        try:
            self._watch(half.request, pair)
        finally:
            # The listener closes the connection next, so the splicer must not use it any more.
            assert self._splicer is not None
            self._splicer.end(pair, "")
            pair.ended.wait()

    def _pair(self, half: _Half, meeting: _Meeting) -> SplicedPair | None:
        """Return the pair once both connections have left TLS; None if one of them failed."""
        ends = self._now() + self._times.answer_s
        with self._changed:
            meeting.ready.add(half.side)
            is_last = len(meeting.ready) == 2 and not meeting.has_failed
            if is_last:
                meeting.pair = self._splice(meeting)
                self._changed.notify_all()
            while meeting.pair is None and not meeting.has_failed:
                if self._now() >= ends:
                    meeting.has_failed = True
                self._changed.wait(LOOK_S)
        if is_last and meeting.pair is not None:
            self._log.joined(half.request)
        return meeting.pair

    def _splice(self, meeting: _Meeting) -> SplicedPair | None:
        assert self._splicer is not None
        edge = meeting.requests[0].edge

        def count(side: int, number: int) -> bool:
            sender = meeting.requests[side].peer
            with self._changed:
                return self._book.count(edge, sender, number, day=self._day())

        try:
            pair = self._splicer.join(*meeting.connections, count)
        except OSError:
            meeting.has_failed = True  # This system has no more descriptors.
            return None
        return pair

    def _watch(self, request: RelayRequest, pair: SplicedPair) -> None:
        """Wait until the pair has ended, and end it when its purpose is over."""
        assert self._splicer is not None
        began = self._now()
        over_since: float | None = None
        while not pair.ended.wait(min(1.0, self._times.grace_s)):
            now = self._now()
            with self._changed:
                is_displaced = self._book.is_displaced(request.edge)
            if is_displaced:
                self._splicer.end(pair, "it was idle, and another pair needs its place")
            reason = is_over(request, self._view(), seconds=now - began)
            over_since = (now if over_since is None else over_since) if reason else None
            if over_since is not None and now >= over_since + self._times.grace_s:
                self._splicer.end(pair, reason)

    def _leave(self, meeting: _Meeting) -> None:
        """Count that one of the two threads is done. The second one ends the stream."""
        with self._changed:
            meeting.left += 1
            if meeting.left < 2:
                return
            ended = self._book.end(meeting.requests[0].edge, now=self._now())
        if ended is not None:
            reason = "an end left before it was joined" if meeting.pair is None else ""
            self._log.ended(ended, meeting.pair.reason if meeting.pair else reason)

    def _day(self) -> int:
        return int(self._wall() // DAY_S)


def _expect_silence(connection: PeerSocket) -> None:
    """Raise PeerLost if the waiting connection has ended, or has sent anything."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise PeerLost("it left, or sent bytes before it was joined", peer=connection.peer)
