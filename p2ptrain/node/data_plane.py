"""The data plane of a node: the listener for bulk data, its handlers, and the endpoint (address and
certificate) that other peers dial.

The handler of path probes is added later, in `assembly`: it needs the context to tell whether a
probe would disturb a reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import ip_address

import psutil

from p2ptrain.availability.wishes import Limits
from p2ptrain.dataplane import (
    PROOF,
    Credentials,
    Endpoint,
    Listener,
    ObserveServer,
    PeerShares,
    PeerSocket,
    RingInbox,
    SendPriority,
    Uplink,
    probe_congestion,
)
from p2ptrain.dataplane.inbox import PURPOSES as RING_PURPOSES
from p2ptrain.dataplane.listener import Handler
from p2ptrain.dataplane.observing import PURPOSE as OBSERVE
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.node.state.plane import DataPlane, ServedChunks
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.store import Store
from p2ptrain.swarm import PURPOSE, ChunkServer, HotChunks, NamedChunks
from p2ptrain.swarm.server import PeerLimit

GUEST_BYTES_PER_S = 4 << 20
"""Bytes per second that this node sends to all strangers together, if the run's weights are public.
A model of a gigabyte then takes four minutes from a single node."""


def open_data_plane(
    stack: ExitStack, around: Surroundings, store: Store, limits: Limits
) -> DataPlane:
    """Accept connections of reduces, and serve chunks of `store`, until `stack` is closed.

    If the user limits the upload rate, reduces have priority over chunks.

    Raises ConfigError: the port cannot be bound.
    """
    config, identity = around.config, around.identity
    credentials = Credentials.create(identity)
    listener = stack.enter_context(
        Listener(
            credentials,
            config.data_host,
            config.data_port,
            allowed=around.admission.admits,
            encrypted=around.run.manifest.encrypted,
        )
    )
    option, wanted = config.limit_up_bytes_per_s, limits.up_bytes_per_s
    uplink = Uplink(option if wanted is None else wanted)
    downlink = Uplink(limits.down_bytes_per_s)
    # `stack` closes these before the listener, whose threads may wait for the uplink.
    stack.callback(uplink.close)
    stack.callback(downlink.close)
    ring_inbox = RingInbox()
    for purpose in RING_PURPOSES:
        listener.handle(purpose, ring_inbox.handle, ring_inbox.refusal)
    listener.handle(OBSERVE, ObserveServer(is_member=listener.is_member))
    fair = PeerShares(uplink, SendPriority.SWARM).wait_to_send
    serving = ServedChunks(HotChunks(store))
    listener.handle(PROOF, lambda connection, hello: None)
    public = NamedChunks(serving) if around.run.manifest.public.weights else None
    if public is None:
        listener.handle(PURPOSE, ChunkServer(serving, limit=fair))
    else:
        guests = ChunkServer(public, limit=_guest_limit(stack, fair))
        server = ChunkServer(serving, limit=fair)
        _serve_guests_too(listener, around.admission.admits, server, guests)
    endpoint = _endpoint(identity, credentials, listener, around.network)
    return DataPlane(
        credentials,
        listener,
        ring_inbox,
        uplink,
        downlink,
        serving,
        probe_congestion(),
        endpoint,
        public,
    )


def _serve_guests_too(
    listener: Listener, admits: Callable[[PeerId], bool], server: Handler, guests: Handler
) -> None:
    """Let `server` send chunks to admitted peers, and `guests` to strangers."""

    def serve(connection: PeerSocket, hello: Mapping[str, object]) -> None:
        (server if admits(connection.peer) else guests)(connection, hello)

    listener.handle(PURPOSE, serve)
    listener.open_to_guests(PURPOSE)


def _guest_limit(stack: ExitStack, fair: PeerLimit) -> PeerLimit:
    """Return the limit for strangers: all of them together get GUEST_BYTES_PER_S, and no more than
    other peers get."""
    uplink = Uplink(GUEST_BYTES_PER_S)
    stack.callback(uplink.close)
    share = PeerShares(uplink, SendPriority.SWARM)

    def wait(peer: PeerId, count: int) -> None:
        share.wait_to_send(peer, count)
        fair(peer, count)

    return wait


def swarm_limit(uplink: Uplink) -> Callable[[int], None]:
    """Return a function that waits until the given number of low-priority bytes may be sent."""
    return uplink.share(SendPriority.SWARM).wait_to_send


def _endpoint(
    identity: Identity, credentials: Credentials, listener: Listener, network: Network
) -> Endpoint:
    """Return the endpoint that peers dial. If the listener is bound to all of this machine's
    addresses, use a host at which the control plane is reached."""
    host, port = listener.address
    if host in ("0.0.0.0", "::"):
        host = outward_host(network.addresses(), v6=host == "::")
    return Endpoint(identity.peer, host, port, credentials.certificate_der)


def first_own_address() -> str:
    """Return this machine's first IPv4 address outside 127.0.0.0/8; 127.0.0.1 if it has none."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    return "127.0.0.1"


def outward_host(
    addresses: Sequence[str], *, v6: bool, own: Callable[[], str] = first_own_address
) -> str:
    """Return the first host in `addresses`, the control plane's addresses, that the data plane can
    use. If there is none, return an address of this machine.

    A socket bound to 0.0.0.0 cannot be reached over IPv6; a socket bound to :: can be reached over
    both protocols. A loopback host is returned only if there is no other host: then the entire run
    is on this machine.
    """
    protocols = ("ip4", "ip6") if v6 else ("ip4",)
    split = [address.split("/") for address in addresses]
    hosts = [parts[2] for parts in split if len(parts) > 2 and parts[1] in protocols]
    outside = [host for host in hosts if not ip_address(host).is_loopback]
    return (outside or hosts or [own()])[0]
