"""Relays: a member passes bytes on between two peers that cannot connect to each other.

RelayServer, RelayLimits, RelayView   the relay: a listener's handler for PURPOSE
RelayLog, RelayTotals, EndedEdge      what a relay reports
Pace                                  the rate limit of a relay
dial_through, serve_through, Route    the two ends of a relayed connection
ReverseDials, greet_caller            a peer dials this node at its request, without a relay
first_that_works, ranked              try several relays, in an order that both ends compute
EdgeKey, FetchKey                     what a relayed connection is for
RelayRefused, RelayUnreachable        faults of a relay; `sockets` has the others
"""

from __future__ import annotations

from p2ptrain.dataplane.relaying.choice import RELAYS_MAX, ranked, turns
from p2ptrain.dataplane.relaying.client import (
    RelayRefused,
    RelayUnreachable,
    Route,
    dial_through,
    first_that_works,
    greet_caller,
    serve_through,
)
from p2ptrain.dataplane.relaying.messages import (
    PURPOSE,
    EdgeId,
    EdgeKey,
    FetchKey,
    Refusal,
    Refused,
    RelayKey,
    RelayRequest,
    key_from_wire,
)
from p2ptrain.dataplane.relaying.pace import Pace
from p2ptrain.dataplane.relaying.policy import (
    EndedEdge,
    RelayLimits,
    RelayTotals,
    RelayView,
    judge,
)
from p2ptrain.dataplane.relaying.reverse_dials import ReverseDials
from p2ptrain.dataplane.relaying.server import RelayLog, RelayServer, RelayTimes

__all__ = [
    "PURPOSE",
    "RELAYS_MAX",
    "EdgeId",
    "EdgeKey",
    "EndedEdge",
    "FetchKey",
    "Pace",
    "Refusal",
    "Refused",
    "RelayKey",
    "RelayLimits",
    "RelayLog",
    "RelayRefused",
    "RelayRequest",
    "RelayServer",
    "RelayTimes",
    "RelayTotals",
    "RelayUnreachable",
    "RelayView",
    "ReverseDials",
    "Route",
    "dial_through",
    "first_that_works",
    "greet_caller",
    "judge",
    "key_from_wire",
    "ranked",
    "serve_through",
    "turns",
]
