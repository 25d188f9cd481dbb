"""The addresses of this node's data plane that it tells other peers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from p2ptrain.dataplane import Endpoint
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.node.gossip.own_addresses import OwnAddresses, own_addresses
from p2ptrain.node.state.context import Context
from p2ptrain.peers.candidates import Candidate, Kind
from p2ptrain.peers.heartbeat import ADDRESSES_MAX

EVERY_ADDRESS = ("0.0.0.0", "::")


def own_endpoint(context: Context, own: OwnAddresses | None = None) -> Endpoint:
    """Return the endpoint with the address that most peers can dial: the one that the user
    announces; the one at which other sites see this node, if they reach its data port there; or an
    address of this machine."""
    own, plane = own or own_addresses(), context.plane.endpoint
    announced = context.config.data_announce
    if announced is not None:
        host, port = announced
        return replace(plane, host=host, port=port)
    reach = context.own_heartbeat.reach
    listening = context.plane.listener.address[0]
    if listening not in EVERY_ADDRESS:
        return plane
    seen = reach.external_host
    if seen and reach.ports.data and (":" not in seen or listening == "::"):
        return replace(plane, host=seen, port=_outside_port(context, seen))
    if context.config.announce and ip_address(plane.host).is_global:
        return plane
    here = own.lan_host or (own.ipv6_host if listening == "::" else "")
    return replace(plane, host=here) if here and plane.host not in own.hosts else plane


def own_candidates(context: Context, own: OwnAddresses | None = None) -> tuple[Candidate, ...]:
    """Return the addresses of this node's data plane, at most one of each kind.

    The observed address is included even if nobody reaches this node there, because peers behind
    the same router recognise by it that they may use the LAN address."""
    own, (host, port) = own or own_addresses(), context.plane.listener.address
    found = list[Candidate]()

    def add(kind: Kind, at: str, port: int = port) -> None:
        with suppress(RemoteProtocolError):  # A loopback address, for example, helps nobody.
            found.append(Candidate(kind, at, port))

    lan = host
    if host in EVERY_ADDRESS:
        lan = own.lan_host or (own.local_ipv6 if host == "::" else "")
    if lan and not ip_address(lan).is_global:
        add(Kind.LAN, lan)
    if context.config.data_announce is not None:
        add(Kind.ANNOUNCED, *context.config.data_announce)
    six = own.public_ipv6 if host == "::" else host
    if ":" in six:
        add(Kind.IPV6, six, _outside_port(context, six))
    seen = context.own_heartbeat.reach.external_host
    if seen and seen != lan and (":" not in seen or host == "::"):
        # Members at other sites try the port that the router has opened before anybody dials it.
        reached = context.own_heartbeat.reach.ports.data
        add(Kind.OBSERVED, seen, _outside_port(context, seen) if reached else port)
    return tuple(found)


def _outside_port(context: Context, host: str) -> int:
    """Return the data port that the router has opened for this node at `host`; otherwise our own
    port."""
    port = context.plane.listener.address[1]
    opened = context.port_mappings.open_ports(6 if ":" in host else 4)
    return next((each.port for each in opened if each.internal_port == port), port)


def told_addresses(context: Context, own: OwnAddresses | None = None) -> tuple[str, ...]:
    """Return the addresses for this node's heartbeats: those of the control plane, as far as there
    is room, and those of the data plane."""
    data = [str(each) for each in own_candidates(context, own)]
    # Further texts say how many edges this node relays, that IPv6 works, that its ports change, and
    # how its last outer step went (`peers/heartbeat`).
    relays, by_ipv6 = relays_offered(context) > 0, context.own_heartbeat.dialable_by_ipv6
    ports = context.peers.punching.changes_ports
    others = relays + by_ipv6 + ports + (context.state.own_report is not None)
    room = ADDRESSES_MAX - len(data) - others
    return (*context.network.addresses()[:room], *data)


def relays_offered(context: Context) -> int:
    """Return how many edges this node offers to relay: none unless others reach its data plane."""
    return context.peers.relaying.offered if context.own_heartbeat.dialled else 0
