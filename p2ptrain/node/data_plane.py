"""The data plane of a node: the listener for bulk data, its handlers, and the endpoint (address and
certificate) that other peers dial.

The handler of path probes is added later, in `assembly`: it needs the context to tell whether a
probe would disturb a reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from ipaddress import ip_address

import psutil

from p2ptrain.dataplane import (
    PROOF,
    Credentials,
    Endpoint,
    Listener,
    ObserveServer,
    PeerShares,
    RingInbox,
    SendPriority,
    Uplink,
    probe_congestion,
)
from p2ptrain.dataplane.inbox import PURPOSES as RING_PURPOSES
from p2ptrain.dataplane.observing import PURPOSE as OBSERVE
from p2ptrain.identity import Identity
from p2ptrain.net import Network
from p2ptrain.node.state.plane import DataPlane
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.store import Store
from p2ptrain.swarm import PURPOSE, ChunkServer, HotChunks


def open_data_plane(stack: ExitStack, around: Surroundings, store: Store) -> DataPlane:
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
    uplink = Uplink(config.limit_up_bytes_per_s) if config.limit_up_bytes_per_s else None
    if uplink is not None:
        # `stack` closes the uplink before the listener, whose threads may wait for the uplink.
        stack.callback(uplink.close)
    ring_inbox = RingInbox()
    for purpose in RING_PURPOSES:
        listener.handle(purpose, ring_inbox.handle, ring_inbox.refusal)
    listener.handle(OBSERVE, ObserveServer(is_member=listener.is_member))
    fair = None if uplink is None else PeerShares(uplink, SendPriority.SWARM).wait_to_send
    listener.handle(PROOF, lambda connection, hello: None)
    listener.handle(PURPOSE, ChunkServer(HotChunks(store), limit=fair))
    endpoint = _endpoint(identity, credentials, listener, around.network)
    return DataPlane(credentials, listener, ring_inbox, uplink, probe_congestion(), endpoint)


def swarm_limit(uplink: Uplink | None) -> Callable[[int], None] | None:
    """Return a function that waits until the given number of low-priority bytes may be sent. Return
    None if the user does not limit the upload rate."""
    return None if uplink is None else uplink.share(SendPriority.SWARM).wait_to_send


def _endpoint(
    identity: Identity, credentials: Credentials, listener: Listener, network: Network
) -> Endpoint:
    """Return the endpoint that peers dial. If the listener is bound to all of this machine's
    addresses, use a host at which the control plane is reached."""
    host, port = listener.address
    if host in ("0.0.0.0", "::"):
        host = outward_host(network.addresses(), v6=host == "::")
    return Endpoint(identity.peer, host, port, credentials.certificate_der)


def outward_host(addresses: Sequence[str], *, v6: bool) -> str:
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
    return (outside or hosts or [_first_own_address()])[0]


def _first_own_address() -> str:
    """Return this machine's first IPv4 address outside 127.0.0.0/8; 127.0.0.1 if it has none."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    return "127.0.0.1"
