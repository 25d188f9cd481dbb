"""Judge which peers can be dialled, by our own incoming connections and by what peers report.

Every node's data plane listens, but many routers let no connection in. A node that was dialled once
can be dialled. Of another node nothing is known at first. Members probe it (see `path_probes`), and
if no probe arrives for long enough, the node reports that it cannot be dialled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
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


def judged_reach(context: Context) -> tuple[bool, bool]:
    """Return whether this node's data plane was dialled, and whether it seems dialable."""
    counts = context.plane.listener.statistics()
    dialled = counts.served + counts.handler_errors + counts.connections_now > 0
    asked = sum(map(context.ledger.snapshot.is_member, context.network.connected())) >= PEERS_MIN
    doubted = asked and time.monotonic() > context.state.started_s + DOUBT_S
    listens = bool(context.network.addresses())
    return dialled, dialled or (listens and not doubted)


def warn(context: Context) -> None:
    """Update the warning of this node."""
    if context.own_heartbeat.dialable:
        context.alerts.clear(WARNING)
    else:
        context.alerts.show(WARNING, OUTBOUND)


def is_dialable(context: Context, peer: PeerId) -> bool:
    """Return what the peer reports of itself; True for a peer that has not been heard."""
    if peer == context.me:
        return context.own_heartbeat.dialable
    record = context.peers.table.get(peer)
    return record is None or record.heartbeat.dialable


def undialable(context: Context, peers: Iterable[PeerId]) -> frozenset[PeerId]:
    return frozenset(peer for peer in peers if not is_dialable(context, peer))


def in_words(context: Context) -> str:
    if context.own_heartbeat.dialled:
        return "others can dial this node"
    if context.own_heartbeat.dialable:
        return "no peer has dialled this node yet"
    return (
        "other peers cannot dial this node: in an exchange its neighbours must be peers that it "
        "can dial"
    )
