"""Judge which peers can be dialled, from our own incoming connections and from peers' reports.

Every node's data plane listens, but many routers block incoming connections. A node that was
dialled once can be dialled. For other nodes, this is unknown at first. Members probe such a node
(see `path_probes`), and if no probe arrives for long enough, the node reports that it cannot be
dialled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from p2ptrain.address_group import is_this_machine
from p2ptrain.dataplane import Endpoint
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution

DOUBT_S = 300.0
"""Seconds within which every member that knows this node probes it, unless it has been dialled."""

PEERS_MIN = 2
"""Minimum number of connected members for this judgement. Fewer members may not have a reason to
dial us, and a ring of so few peers uses every pair anyway. Only members probe, so it means nothing
if other peers do not dial us."""

WARNING = "reach"
OUTBOUND = Caution(
    "NET-OUTBOUND-ONLY",
    "other peers cannot dial this node's data plane, so its neighbours in an exchange must be "
    "peers that it can dial",
    "forward a port on your router to the data plane, and pass that port to --data-listen",
)


def judged_reach(parts: Parts) -> tuple[bool, bool]:
    """Return whether this node's data plane has been dialled, and whether it seems dialable."""
    counts = parts.listener.statistics()
    dialled = counts.served + counts.handler_errors + counts.connections_now > 0
    asked = sum(map(parts.ledger.state.is_member, parts.network.connected())) >= PEERS_MIN
    doubted = asked and time.monotonic() > parts.started_s + DOUBT_S
    listens = bool(parts.network.addresses())
    return dialled, dialled or (listens and not doubted)


def warn(parts: Parts) -> None:
    """Update this node's warning."""
    if parts.standing.dialable:
        parts.standing.warnings.pop(WARNING, None)
    else:
        parts.standing.warnings[WARNING] = OUTBOUND


def is_dialable(parts: Parts, peer: PeerId) -> bool:
    """Return what `peer` reports about itself; True if it has not been heard."""
    if peer == parts.me:
        return parts.standing.dialable
    view = parts.peers.get(peer)
    return view is None or view.heartbeat.dialable


def may_be_at(parts: Parts, endpoint: Endpoint) -> bool:
    """Return whether to dial `endpoint`, which its peer claims as its own.

    An endpoint with a loopback address is on our own machine. It is dialled only if our connection
    to that peer also stays on this machine. Otherwise a member could make us connect to services on
    this machine that are meant only for local programs.
    """
    site = parts.network.site_of(endpoint.peer)
    return not is_this_machine(endpoint.host) or (bool(site) and is_this_machine(site))


def undialable(parts: Parts, peers: Iterable[PeerId]) -> frozenset[PeerId]:
    return frozenset(peer for peer in peers if not is_dialable(parts, peer))


def in_words(parts: Parts) -> str:
    if parts.standing.dialled:
        return "other peers can dial this node"
    if parts.standing.dialable:
        return "no peer has dialled this node yet"
    return (
        "other peers cannot dial this node, so its neighbours in an exchange must be peers that "
        "it can dial"
    )
