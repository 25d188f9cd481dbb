"""Requests that a third member, the forwarder, passes on between two members that cannot connect to
each other. Written by `forwarding/`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.peers.forwarded_messages import HandledSerials
from p2ptrain.rate_limit import Allowance, FairAllowance

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Passage:
    """How a forwarded request came: the member that passed it on, and the IP address at which that
    member says that it sees the sender; "" if it does not say so."""

    forwarder: PeerId
    sender_seen_at: str


PassedOn = Callable[[PeerId, bytes, Passage], Awaitable[bytes]]
"""`await handler(peer, request, passage)` returns the reply to a forwarded request."""

AT_ONCE, PER_S = 16, 8.0
"""Number of requests of one sender that a forwarder passes on at once, and per second."""

RARE_AT_ONCE, RARE_PER_S = 16, 2.0
"""The same for requests to meet at a relay and for an inner optimizer (`is_rare` in
`forwarded_protocols`): a member makes one for each source, not one for each message of a vote."""

VISITORS_AT_ONCE, VISITORS_PER_S = 128, 16.0
"""Number of requests that a forwarder passes on from all visitors and to them, at once and per
second. A newcomer needs about eight for each source, and has a few sources."""


@dataclass(slots=True)
class Forwarding:
    handlers: dict[str, tuple[PassedOn, int]] = field(default_factory=dict)
    """For each protocol whose requests may be forwarded to us: its handler, and the maximum size of
    a request in bytes."""
    handled: HandledSerials = field(default_factory=HandledSerials)
    next_serial: int = 0
    """The serial number of our next request."""
    direct_again_s: dict[PeerId, float] = field(default_factory=dict)
    """For each peer that could not be connected, when to try again (by `Context.now`)."""
    forwarders: dict[PeerId, PeerId] = field(default_factory=dict)
    """For each such peer, the member that passed our last request on to it."""
    passed_on: int = 0
    """Number of requests that this node has passed on for others."""
    allowed: Allowance = field(default_factory=lambda: Allowance(AT_ONCE, PER_S))
    """Rate limit for the requests of each sender that this node passes on."""
    allowed_rare: Allowance = field(default_factory=lambda: Allowance(RARE_AT_ONCE, RARE_PER_S))
    """Further rate limit for those of them that are rare."""
    allowed_visitors: FairAllowance = field(
        default_factory=lambda: FairAllowance(VISITORS_AT_ONCE, VISITORS_PER_S)
    )
    """Rate limit for the requests that this node passes on from visitors and to visitors. They do
    not use up what a member may send."""
    accepted: Allowance = field(default_factory=lambda: Allowance(2 * AT_ONCE, 2 * PER_S))
    """Rate limit for the requests that others pass on to this node, for each pair of a forwarder
    and a sender. The signature is checked afterwards, so a forwarder that invents requests in the
    name of a sender uses up only its own part."""
