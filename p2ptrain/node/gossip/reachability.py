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
from p2ptrain.peers.candidates import Kind, candidates_in, share_site
from p2ptrain.peers.reach_verdict import Reach

WARNING = "reach"
OUTBOUND = Caution(
    "NET-OUTBOUND-ONLY",
    "other peers cannot dial this node's data plane, so it is reached by hole punching or through "
    "other members, if one that both ends are connected to is up",
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


def is_dialable(context: Context, peer: PeerId, *, by: PeerId | None = None) -> bool:
    """Return whether `peer` reports that `by` can dial it; True if its heartbeat is missing. By
    default, `by` is this node. If the peer can be dialled by IPv6 only, `by` needs IPv6 too.

    Both ends of a pair compute this from the same heartbeats, so they agree on who dials."""
    if peer == context.me:
        usual, by_ipv6 = context.own_heartbeat.dialable, context.own_heartbeat.dialable_by_ipv6
    else:
        record = context.peers.table.get(peer)
        if record is None:
            return True
        usual, by_ipv6 = record.heartbeat.dialable, record.heartbeat.dialable_by_ipv6
    return usual or (by_ipv6 and _has_ipv6(context, context.me if by is None else by))


def changes_ports(context: Context, peer: PeerId) -> bool:
    """Return whether `peer` reports that its router shows each peer another port."""
    if peer == context.me:
        return context.peers.punching.changes_ports
    record = context.peers.table.get(peer)
    return record is not None and record.heartbeat.changes_ports


def shares_site(context: Context, peer: PeerId) -> bool:
    """Return whether `peer` reports the external address of this node: both are then most likely
    behind the same router."""
    record, external = context.peers.table.get(peer), context.own_heartbeat.reach.external_host
    return record is not None and share_site(candidates_in(record.heartbeat.addresses), external)


def are_apart(context: Context, one: PeerId, other: PeerId) -> bool:
    """Return whether neither of the two can dial the other."""
    return not (is_dialable(context, one, by=other) or is_dialable(context, other, by=one))


def _has_ipv6(context: Context, peer: PeerId) -> bool:
    """Return whether `peer` tells others a public IPv6 address of its own."""
    if peer == context.me:
        return context.own_heartbeat.tells_ipv6
    record = context.peers.table.get(peer)
    return record is not None and tells_ipv6(record.heartbeat.addresses)


def tells_ipv6(addresses: Iterable[str]) -> bool:
    """Return whether the addresses of a heartbeat contain a public IPv6 address of a data plane."""
    return any(each.kind is Kind.IPV6 for each in candidates_in(addresses))


def in_words(context: Context) -> str:
    """Return the verdict and its sentence, such as "open: members connect to you …"."""
    return context.own_heartbeat.reach.verdict.words
