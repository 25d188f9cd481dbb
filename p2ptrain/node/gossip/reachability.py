"""Judge whether other peers can dial this node, and look up what they report about themselves.

Every node's data plane listens, but many routers block incoming connections. A node that was
dialled once knows that it can be dialled. Any other node does not know at first. Members probe it
(see `path_probes`), and if no probe arrives for long enough, the node reports in its heartbeats
that it cannot be dialled.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

DOUBT_S = 300.0
"""Seconds after its start at which a node that was never dialled concludes that it cannot be
dialled. By then, members should have probed it."""

PEERS_MIN = 2
"""Minimum number of connected members for this conclusion. If there are fewer, perhaps none of them
had a reason to dial us. In so small a ring, all pairs are neighbours anyway, so the conclusion
would not help. Other peers are not counted, since they do not probe."""

WARNING = "reach"
OUTBOUND = Caution(
    "NET-OUTBOUND-ONLY",
    "other peers cannot dial this node's data plane, so its neighbours in an exchange must be "
    "peers that it can dial",
    "forward a port on your router to the data plane, and pass that port to --data-listen",
)


def judged_reach(context: Context) -> tuple[bool, bool]:
    """Return whether peers have dialled this node's data plane, and whether they probably can."""
    counts = context.plane.listener.statistics()
    dialled = counts.served + counts.handler_errors + counts.connections_now > 0
    asked = sum(map(context.ledger.snapshot.is_member, context.network.connected())) >= PEERS_MIN
    doubted = asked and context.now() > context.state.started_s + DOUBT_S
    listens = bool(context.network.addresses())
    return dialled, dialled or (listens and not doubted)


def warn(context: Context) -> None:
    """Show the warning that other peers cannot dial this node, or clear it."""
    if context.own_heartbeat.dialable:
        context.alerts.clear(WARNING)
    else:
        context.alerts.show(WARNING, OUTBOUND)


def is_dialable(context: Context, peer: PeerId) -> bool:
    """Return whether `peer` reports that it can be dialled; True if its heartbeat is missing."""
    if peer == context.me:
        return context.own_heartbeat.dialable
    record = context.peers.table.get(peer)
    return record is None or record.heartbeat.dialable


def undialable(context: Context, peers: Iterable[PeerId]) -> frozenset[PeerId]:
    return frozenset(peer for peer in peers if not is_dialable(context, peer))


def in_words(context: Context) -> str:
    if context.own_heartbeat.dialled:
        return "other peers can dial this node"
    if context.own_heartbeat.dialable:
        return "no peer has dialled this node yet"
    return (
        "other peers cannot dial this node, so its neighbours in an exchange must be peers that "
        "it can dial"
    )
