"""Decide for whom a member relays, how much, and for how long.

A relay gives away its upload, so it does so only for the run, and within limits:

- Both ends are members of the roster. An edge of a reduce is relayed only between participants of
  that attempt, and only while that attempt lasts. If the outer step was closed, its two ends may
  keep the edge for the next reduce in which both take part. Until then the edge is *idle*: it is
  ended as soon as another edge needs its place.
- A few edges at a time; an edge is a pair of peers with all its streams. Fetches of chunks get half
  of them at most, since reduces make everybody wait.
- One of the two ends of a fetch may be a visitor: a peer that this node admits by name and that is
  not a member, for instance a newcomer that still lacks the weights. The visitor must be the end
  that fetches. Visitors together get half of the fetches and of the bytes, and shorter fetches.
- A number of bytes each day. At that number new edges are refused. Edges that exist may continue
  for 5 % more, since each broken edge costs a whole attempt; then they are ended.

An edge that was refused once is refused for some seconds, so that both of its ends hear the same
answer and go on to the next relay.

*Whose word is it?* Only the ledger says who takes part, and only the organisers and delegates say
who is a visitor. Two lying participants can occupy an edge
for as long as their attempt lasts; they cannot make the relay connect to anybody.

This module has no clock and no sockets. `server` feeds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from p2ptrain.dataplane.relaying.messages import (
    EdgeId,
    EdgeKey,
    Refusal,
    Refused,
    RelayRequest,
)
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.rate_limit import Allowance

EDGES, BYTES_PER_DAY = 2, 20 * 10**9
"""The offer of a node whose user does not say otherwise. The bytes are 1.9 Mbit/s all day long."""
EDGES_MAX = 64
CONNECTIONS_MAX = 128
"""Maximum number of connections to the relay that wait or are joined: half of the listener's."""
OVER_THE_DAY = 1.05
"""Edges are ended when this multiple of the daily limit has been relayed."""
LIMIT_SHARE = 0.25
"""Share of the user's upload limit that relayed bytes may use."""
REFUSED_S = 5.0
REFUSED_MAX = 256
ASKS_AT_ONCE, ASKS_PER_S = 64, 8.0
"""Requests of one peer: all streams of an edge at once, then those of an edge every few seconds."""
PEERS_MAX = 1024
"""Maximum number of peers for which relayed bytes are counted one by one."""
FETCH_S, VISITOR_FETCH_S = 900.0, 300.0
"""Maximum seconds of a relayed fetch, and of one by a visitor. The fetcher may ask again
afterwards."""
VISITORS_SHARE = 0.5
"""Share of the day's bytes that is relayed for visitors."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """`edges`: how many edges are relayed at a time; 0 offers nothing. `connections_max` also
    counts connections that wait for their other end."""

    edges: int = EDGES
    bytes_per_day: int = BYTES_PER_DAY
    connections_max: int = CONNECTIONS_MAX

    def __post_init__(self) -> None:
        if not 0 <= self.edges <= EDGES_MAX or self.bytes_per_day < 0:
            raise LocalProtocolError(f"invalid limits of a relay: {self}")

    @property
    def fetches(self) -> int:
        """Maximum number of edges that fetch chunks."""
        return max(self.edges // 2, min(self.edges, 1))

    @property
    def visitor_fetches(self) -> int:
        """Maximum number of edges over which visitors fetch chunks."""
        return max(self.fetches // 2, min(self.fetches, 1))

    @property
    def visitor_bytes_per_day(self) -> float:
        return VISITORS_SHARE * self.bytes_per_day


@dataclass(frozen=True, slots=True)
class RelayView:
    """The statements of the relay's own ledger. `attempt` is the current attempt at outer step
    `step`, and `participants` are its peers. Before an attempt has begun, `attempt` is the next
    one's number and there are no participants. `is_visitor` says whom this node admits by name
    among the others."""

    run: RunId
    members: Collection[PeerId]
    step: int
    attempt: int
    participants: Collection[PeerId] = ()
    is_visitor: Callable[[PeerId], bool] = field(default=lambda peer: False, compare=False)

    def has_visitor(self, request: RelayRequest) -> bool:
        """Return whether one of the two ends is not a member."""
        return not all(end in self.members for end in (request.peer, request.other))


@dataclass(frozen=True, slots=True)
class NotYet:
    """The request may become plausible: the relay's ledger may be behind that of the asker."""

    reason: str


Verdict = NotYet | Refused | None
"""None allows the request."""


def judge(request: RelayRequest, view: RelayView) -> Verdict:
    """Decide whether the two peers may use this relay for this purpose, by the ledger alone."""
    key, ends = request.key, (request.peer, request.other)
    if key.run != view.run:
        return _not_allowed("this relay takes part in another run")
    if view.has_visitor(request) and not _is_fetch_of_visitor(request, view):
        return _not_allowed("both ends must be members")
    if not isinstance(key, EdgeKey):
        return None
    if (key.step, key.attempt) < (view.step, view.attempt):
        return _not_allowed("this attempt is over")
    if (key.step, key.attempt) == (view.step, view.attempt) and view.participants:
        if all(end in view.participants for end in ends):
            return None
        return _not_allowed("both ends must take part in this attempt")
    if key.step in (view.step, view.step + 1):
        return NotYet("this relay has not heard of this attempt yet")
    return _not_allowed("this attempt is too far ahead")


def is_idle(edge: EdgeId, view: RelayView) -> bool:
    """Return whether the attempt of this edge is over, and its two ends do not both take part in
    the current one. A fetch is never idle."""
    if edge.is_fetch:
        return False
    _, _, step, attempt = edge.purpose
    is_past = (int(str(step)), int(str(attempt))) < (view.step, view.attempt)
    return is_past and not all(end in view.participants for end in edge.pair)


def _may_be_kept(request: RelayRequest, view: RelayView) -> bool:
    """Return whether an edge may go on after its outer step was closed: both ends are members, and
    no attempt is open or both take part in it."""
    key, ends = request.key, (request.peer, request.other)
    if not isinstance(key, EdgeKey) or key.run != view.run or view.has_visitor(request):
        return False
    used = not view.participants or all(end in view.participants for end in ends)
    return key.step < view.step and used


def _is_fetch_of_visitor(request: RelayRequest, view: RelayView) -> bool:
    """Return whether a visitor asks to fetch from a member."""
    fetcher = request.key.dialler
    source = request.other if fetcher == request.peer else request.peer
    is_fetch = not isinstance(request.key, EdgeKey)
    return is_fetch and source in view.members and view.is_visitor(fetcher)


def _not_allowed(reason: str) -> Refused:
    return Refused(Refusal.NOT_ALLOWED, reason)


@dataclass(slots=True)
class _Edge:
    """An edge that is being relayed."""

    since: float
    is_visitors: bool = False
    streams: int = 0
    relayed_bytes: int = 0
    is_displaced: bool = False
    """Whether another edge has taken its place. Then it is about to end."""


@dataclass(frozen=True, slots=True)
class EndedEdge:
    """An edge whose last stream has ended."""

    edge: EdgeId
    seconds: float
    relayed_bytes: int


@dataclass(frozen=True, slots=True)
class RelayTotals:
    """The bytes that were relayed since the start. `by_peer` counts those that each peer sent, and
    `today_by_peer` the part of today."""

    edges_now: int
    edges_most: int
    today_bytes: int
    total_bytes: int
    by_peer: tuple[tuple[PeerId, int], ...]
    today_by_peer: tuple[tuple[PeerId, int], ...] = ()


IsIdle = Callable[[EdgeId], bool]


def _never(edge: EdgeId) -> bool:
    return False


@dataclass(slots=True)
class RelayBook:
    """The edges of a relay, and the bytes that it has relayed. `day` is the number of the current
    day. Not thread-safe."""

    limits: RelayLimits
    _edges: dict[EdgeId, _Edge] = field(default_factory=dict)
    _refused: dict[EdgeId, tuple[float, Refused]] = field(default_factory=dict)
    _asked: Allowance = field(default_factory=lambda: Allowance(ASKS_AT_ONCE, ASKS_PER_S))
    _day: int = 0
    _today_bytes: int = 0
    _visitors_today_bytes: int = 0
    _total_bytes: int = 0
    _by_peer: Counter[PeerId] = field(default_factory=Counter)
    _today_by_peer: Counter[PeerId] = field(default_factory=Counter)

    def ask(
        self,
        request: RelayRequest,
        *,
        connections: int,
        now: float,
        day: int,
        is_visitors: bool = False,
        idle: IsIdle = _never,
    ) -> Verdict:
        """Count a new request, and return whether limits forbid it. `connections` is the number of
        other connections to the relay. `is_visitors`: whether one end is a visitor. `idle`: which
        edges are idle."""
        self._begin_day(day)
        edge = request.edge
        until, refused = self._refused.get(edge, (now, None))
        if refused is not None and now < until:
            return refused
        if not self._asked.consume(request.peer, 1, now):
            return Refused(Refusal.FULL, "this peer asks too often")
        if connections >= self.limits.connections_max:
            return self._refuse(edge, "this relay has too many connections", now)
        if why := self._why_full(edge, is_visitors, idle):
            return self._refuse(edge, why, now)
        return None

    def begin(
        self,
        edge: EdgeId,
        *,
        now: float,
        day: int,
        is_visitors: bool = False,
        idle: IsIdle = _never,
    ) -> Refused | None:
        """Begin a stream, now that both ends have come. Call `end` later, unless this refuses. If
        all places are taken, an idle edge loses its place: see `is_displaced`."""
        self._begin_day(day)
        if why := self._why_full(edge, is_visitors, idle):
            return self._refuse(edge, why, now)
        held = self._held
        if edge not in self._edges and len(held) >= self.limits.edges:
            oldest = next(each for each in held if idle(each))
            self._edges[oldest].is_displaced = True
        self._edges.setdefault(edge, _Edge(now, is_visitors)).streams += 1
        return None

    def is_displaced(self, edge: EdgeId) -> bool:
        """Return whether the streams of this edge must end, since another edge has its place."""
        return edge in self._edges and self._edges[edge].is_displaced

    @property
    def _held(self) -> list[EdgeId]:
        """The edges that have a place, oldest first."""
        return [edge for edge, found in self._edges.items() if not found.is_displaced]

    def end(self, edge: EdgeId, *, now: float) -> EndedEdge | None:
        """Count the end of a stream. Return the whole edge if this was its last stream."""
        found = self._edges[edge]
        found.streams -= 1
        if found.streams:
            return None
        del self._edges[edge]
        return EndedEdge(edge, now - found.since, found.relayed_bytes)

    def count(self, edge: EdgeId, sender: PeerId, relayed: int, *, day: int) -> bool:
        """Count bytes that were relayed for `sender`. Return whether the edge may continue."""
        self._begin_day(day)
        self._today_bytes += relayed
        self._total_bytes += relayed
        if sender in self._by_peer or len(self._by_peer) < PEERS_MAX:
            self._by_peer[sender] += relayed
            self._today_by_peer[sender] += relayed
        found = self._edges[edge]
        found.relayed_bytes += relayed
        if found.is_visitors:
            self._visitors_today_bytes += relayed
            if self._visitors_today_bytes >= OVER_THE_DAY * self.limits.visitor_bytes_per_day:
                return False
        return self._today_bytes < OVER_THE_DAY * self.limits.bytes_per_day

    def offered(self, day: int) -> int:
        """Return how many edges this relay offers, free or in use. It is 0 when the day's bytes are
        used up. Edges in use do not lower it: otherwise the two ends of the next edge, which hear
        of changes at different times, would choose different relays."""
        self._begin_day(day)
        return 0 if self._today_bytes >= self.limits.bytes_per_day else self.limits.edges

    def totals(self, day: int) -> RelayTotals:
        self._begin_day(day)
        return RelayTotals(
            len(self._held),
            self.limits.edges,
            self._today_bytes,
            self._total_bytes,
            tuple(self._by_peer.most_common()),
            tuple(self._today_by_peer.most_common()),
        )

    def _why_full(self, edge: EdgeId, is_visitors: bool, idle: IsIdle) -> str:
        if self._today_bytes >= self.limits.bytes_per_day:
            return "this relay has used up its bytes of today"
        if edge in self._edges:
            return ""
        fetches = sum(each.is_fetch for each in self._edges)
        if sum(not idle(each) for each in self._held) >= self.limits.edges:
            return "this relay is busy with other edges"
        if edge.is_fetch and fetches >= self.limits.fetches:
            return "this relay is busy with other fetches"
        return self._why_full_for_visitors() if is_visitors else ""

    def _why_full_for_visitors(self) -> str:
        if self._visitors_today_bytes >= self.limits.visitor_bytes_per_day:
            return "this relay has used up its bytes of today for peers that are not members"
        if sum(each.is_visitors for each in self._edges.values()) >= self.limits.visitor_fetches:
            return "this relay is busy with other fetches of peers that are not members"
        return ""

    def _refuse(self, edge: EdgeId, reason: str, now: float) -> Refused:
        refused = Refused(Refusal.FULL, reason)
        self._refused.pop(edge, None)
        self._refused[edge] = now + REFUSED_S, refused
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        return refused

    def _begin_day(self, day: int) -> None:
        if day != self._day:
            self._day, self._today_bytes, self._visitors_today_bytes = day, 0, 0
            self._today_by_peer.clear()


def is_over(request: RelayRequest, view: RelayView, *, seconds: float) -> str:
    """Return why a connection that has been relayed for `seconds` must end; "" if it may go on."""
    verdict = judge(request, view)
    if isinstance(verdict, Refused) and not _may_be_kept(request, view):
        return verdict.reason
    limit_s = VISITOR_FETCH_S if view.has_visitor(request) else FETCH_S
    if not isinstance(request.key, EdgeKey) and seconds >= limit_s:
        return "a relayed fetch must end after a while"
    return ""
