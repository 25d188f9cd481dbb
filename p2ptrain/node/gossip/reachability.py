"""Judge which peers can be dialled, by our own incoming connections and by what peers report.

Every node's data plane listens, but many routers let no connection in. A node that was dialled once
can be dialled. Of another node nothing is known at first. Members probe it (see `path_probes`), and
if no probe arrives for long enough, the node reports that it cannot be dialled.
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
"""By this time every member that hears of this node has probed it, unless it was dialled before."""

PEERS_MIN = 2
"""Fewer members may have no reason to dial us, and a ring of so few uses every pair anyway. Only
members probe, so missing dials of other peers prove nothing."""

WARNING = "reach"
OUTBOUND = Caution(
    "NET-OUTBOUND-ONLY",
    "other peers cannot dial this node's data plane, so in an exchange its neighbours must "
    "be peers that it can dial",
    "forward a port to the data plane, and name that port with --data-listen",
)


def judged_reach(parts: Parts) -> tuple[bool, bool]:
    """Return whether this node's data plane was dialled, and whether it seems dialable."""
    counts = parts.listener.statistics()
    dialled = counts.served + counts.handler_errors + counts.connections_now > 0
    asked = sum(map(parts.ledger.state.is_member, parts.network.connected())) >= PEERS_MIN
    doubted = asked and time.monotonic() > parts.started_s + DOUBT_S
    listens = bool(parts.network.addresses())
    return dialled, dialled or (listens and not doubted)


def warn(parts: Parts) -> None:
    """Update the warning of this node."""
    if parts.standing.dialable:
        parts.standing.warnings.pop(WARNING, None)
    else:
        parts.standing.warnings[WARNING] = OUTBOUND


def is_dialable(parts: Parts, peer: PeerId) -> bool:
    """Return what the peer reports of itself; True for a peer that has not been heard."""
    if peer == parts.me:
        return parts.standing.dialable
    record = parts.peers.get(peer)
    return record is None or record.heartbeat.dialable


def may_be_at(parts: Parts, endpoint: Endpoint) -> bool:
    """Return whether we dial `endpoint` on its peer's word.

    An endpoint on a loopback address is one of our own machine. It is dialled only if our
    connection with that peer stays on this machine too. Otherwise a member could make us connect to
    services that listen here for local programs alone.
    """
    site = parts.network.site_of(endpoint.peer)
    return not is_this_machine(endpoint.host) or (bool(site) and is_this_machine(site))


def undialable(parts: Parts, peers: Iterable[PeerId]) -> frozenset[PeerId]:
    return frozenset(peer for peer in peers if not is_dialable(parts, peer))


def in_words(parts: Parts) -> str:
    if parts.standing.dialled:
        return "others can dial this node"
    if parts.standing.dialable:
        return "no peer has dialled this node yet"
    return (
        "other peers cannot dial this node: in an exchange its neighbours must be peers that it "
        "can dial"
    )
