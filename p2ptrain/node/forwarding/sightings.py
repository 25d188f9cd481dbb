"""Where a member and this node itself are seen, for the decision which addresses may be called.

Every host here is one that this node has seen itself, or that the member which passed a message on
states as its own observation. Nothing comes from the message or from its sender.
"""

from __future__ import annotations

from p2ptrain.address_group import plain_host
from p2ptrain.dataplane import Sightings
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.forwarding import Passage
from p2ptrain.portmap import Gateway, find_gateway
from p2ptrain.portmap.gateway import Version

VERSIONS: tuple[Version, ...] = (4, 6)


def sightings_of(
    context: Context, peer: PeerId, passage: Passage | None, gateways: frozenset[str]
) -> Sightings:
    """Return where `peer` is seen. `passage` is that of its message; None if the message came
    directly."""
    external = context.own_heartbeat.reach.external_host
    told = passage.sender_seen_at if passage is not None else ""
    return Sightings(
        by_us=seen_by_us(context, peer),
        by_forwarder=frozenset([told] if told else []),
        own_hosts=frozenset([external] if external else []),
        gateways=gateways,
    )


def seen_by_us(context: Context, peer: PeerId) -> frozenset[str]:
    """Return the hosts at the other end of our own connections with `peer`."""
    host = context.network.host_of(peer)
    control = frozenset([plain_host(host)] if host else [])
    return control | context.plane.listener.hosts_of(peer)


def own_gateways() -> frozenset[str]:
    """Return the inside addresses of this machine's routers."""
    found = [find_gateway(version) for version in VERSIONS]
    return frozenset(str(each.address) for each in found if isinstance(each, Gateway))
