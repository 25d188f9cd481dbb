"""Connections that this node and another peer open from both ends at the same time, because neither
can dial the other. One of the two is a member; the other is a member too, or a visitor that fetches
chunks. Written by `punching/`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import trio

from p2ptrain.dataplane import Endpoint, LocalPort, Observation, PunchSessions, SecureSocket
from p2ptrain.dataplane.observing import ASKED_AT_ONCE, ASKED_PER_S
from p2ptrain.dataplane.punch_sessions import Effect, Punch
from p2ptrain.errors import PeerError
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import FairAllowance

VISITOR_MESSAGES_AT_ONCE, VISITOR_MESSAGES_PER_S = 64, 8.0
"""Messages about punching from all visitors together. A newcomer sends four to each source."""

PUNCHED_S = 600.0
"""Seconds for which a member counts as reached by hole punching after the last connection."""

EXPERIENCE_S, FAILED_MIN = 3600.0, 2
"""If punching failed with this many members in the last hour, and worked with none, then this
node's router is probably the obstacle."""

REACHED_MAX = 1024
"""Maximum number of members that are remembered as reached by hole punching, or as not reached."""

CHUNKS = "chunks"
"""The purpose of a connection on which this node requests chunks; see `punching/purposes`."""

Hello = Mapping[str, object]

OpenConnection = Callable[[Endpoint, Hello, str, float], Awaitable[SecureSocket]]
"""`await open(endpoint, hello, about, deadline_s)`; see `connecting/single`."""

Agreement = tuple[PeerId, bytes]
"""The other member, and the nonce of the agreement."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Punch at `start_at` (by `Context.now`), connection i from `ports[i]` to `places[i]`."""

    start_at: float
    ports: tuple[LocalPort, ...]
    places: tuple[Endpoint, ...]
    observing_s: float
    """Seconds that the observation of our ports took."""


Agree = Callable[[PeerId, str, int], AbstractAsyncContextManager[Agreed]]
"""`agree(peer, about, count)` offers to punch `count` connections, at least one; see
`punching/agreeing`."""


@dataclass(frozen=True, slots=True)
class ObservedAhead:
    """Ports that are observed before the other member offers to punch. `ports` is empty if nobody
    observes them, or once an agreement uses them."""

    done: trio.Event = field(default_factory=trio.Event)
    ports: list[Observation] = field(default_factory=list)


@dataclass(slots=True)
class Punching:
    sessions: PunchSessions = field(default_factory=PunchSessions)
    agree: Agree | None = None
    """None unless the task runs that executes effects. It runs once this node has joined."""
    open: OpenConnection | None = None
    """Opens a connection with a member in every way. None as long as `agree` is None."""
    effects: trio.MemorySendChannel[Effect] | None = None
    """Effects for that task."""
    on_the_way: set[tuple[PeerId, bytes, type]] = field(default_factory=set)
    """The receiver, nonce and type of each message that is being sent."""
    moved: trio.Event = field(default_factory=trio.Event)
    """Set when `sessions` may have an earlier deadline; replaced by the task."""
    offered: dict[Agreement, trio.MemorySendChannel[Punch | PeerError]] = field(
        default_factory=dict
    )
    """The agreements that this node has offered and that are under way. Each channel takes the
    outcome: when and where to punch, or why not."""
    ahead: dict[tuple[PeerId, str], ObservedAhead] = field(default_factory=dict)
    """Our ports for agreements that another member will offer soon, by what they are about."""
    ports: dict[Agreement, Sequence[Observation]] = field(default_factory=dict)
    """Our observed ports for the agreements that another member has offered."""
    failed: dict[tuple[PeerId, str], str] = field(default_factory=dict)
    """Why the newest agreements failed that another member offered, by what they were about."""
    observed: FairAllowance = field(
        default_factory=lambda: FairAllowance(ASKED_AT_ONCE, ASKED_PER_S)
    )
    """How many of our ports we let members observe for each peer that wants to punch, and for our
    own offers. An observer allows us this many in all, so no peer may use up all of them. All
    visitors together count as one peer."""
    visitor_messages: FairAllowance = field(
        default_factory=lambda: FairAllowance(VISITOR_MESSAGES_AT_ONCE, VISITOR_MESSAGES_PER_S)
    )
    """Rate limit for the messages of visitors."""
    reached_s: dict[PeerId, float] = field(default_factory=dict)
    """When this node last opened a connection with each member by hole punching."""

    changes_ports: bool = False
    """Whether this node's router shows each peer another port, as far as this node knows."""
    calling: set[tuple[PeerId, str]] = field(default_factory=set)
    """The members that this node and they are calling now, at their offer, and what it is about."""
    failed_s: dict[PeerId, float] = field(default_factory=dict)
    """When this node last had to connect with each member in another way, since punching failed."""

    def note_reached(self, peer: PeerId, now: float) -> None:
        """Note that a connection with `peer` was punched. Any task may call this."""
        self.failed_s.pop(peer, None)
        _note_time(self.reached_s, peer, now)

    def note_failed(self, peer: PeerId, now: float) -> None:
        """Note that punching with `peer` failed. Any task may call this."""
        _note_time(self.failed_s, peer, now)

    def failed_ago_s(self, peer: PeerId, now: float) -> float:
        """Return the seconds since punching with `peer` failed; infinity if it did not, or has
        worked since."""
        return now - self.failed_s.get(peer, -math.inf)

    def has_worked_since(self, peer: PeerId, at_s: float) -> bool:
        """Return whether a connection with `peer` has been punched since this time."""
        return self.reached_s.get(peer, -math.inf) >= at_s

    def has_only_failed(self, now: float) -> bool:
        """Return whether punching failed with at least FAILED_MIN members in the last hour, and
        worked with none."""
        since_s = now - EXPERIENCE_S
        failed = sum(at_s > since_s for at_s in self.failed_s.values())
        return failed >= FAILED_MIN and not any(at_s > since_s for at_s in self.reached_s.values())

    def reached(self, now: float) -> frozenset[PeerId]:
        """Return the members that were lately reached by hole punching."""
        return frozenset(it for it, at_s in self.reached_s.items() if at_s > now - PUNCHED_S)

    def failure_of(self, peer: PeerId, about: str) -> str:
        """Return why the newest agreement about this failed that `peer` offered; "" if it did
        not."""
        return self.failed.get((peer, about), "")


def _note_time(times: dict[PeerId, float], peer: PeerId, now: float) -> None:
    """Set the time of `peer`, and forget the oldest if there are too many."""
    times.pop(peer, None)
    times[peer] = now
    if len(times) > REACHED_MAX:
        del times[next(iter(times))]
