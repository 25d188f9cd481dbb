"""Tell users and peers whether others can dial this node, and look up what peers report about
themselves.

The judgement itself comes from `reach_task`. Heartbeats contain its result for the data plane,
because that decides which of two neighbours in an exchange dials the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.peers.reach_verdict import Reach

WARNING = "reach"
OUTBOUND = Caution(
    "NET-OUTBOUND-ONLY",
    "other peers cannot dial this node's data plane, so its neighbours in an exchange must be "
    "peers that it can dial",
    "forward a port on your router to the data plane, and pass that port to --data-listen",
)


def judged_reach(context: Context) -> tuple[bool, bool]:
    """Return whether other sites have lately connected to this node's data plane, and whether they
    probably can. They probably can as long as nobody has tried in vain."""
    data = context.own_heartbeat.reach.ports.data
    listens = bool(context.network.addresses())
    return data is True, listens and data is not False


def warn(context: Context) -> None:
    """Show the warning that other peers cannot dial this node, or clear it. Peers that have another
    way to this node need no warning."""
    other_way = context.own_heartbeat.reach.verdict.reach in (Reach.PUNCHED, Reach.RELAYED)
    if context.own_heartbeat.dialable or other_way:
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
    """Return the verdict and its sentence, such as "open: members connect to you …"."""
    return context.own_heartbeat.reach.verdict.words
