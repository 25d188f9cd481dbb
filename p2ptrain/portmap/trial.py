"""Find out once, without a node, whether the router opens ports: open them, and close them again.

For a diagnosis of this machine. Do not use it for the ports of a node that is running, since it
closes them. The functions block for at most half a minute; `Interruption` ends them earlier.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2ptrain.portmap.datagrams import Interruption
from p2ptrain.portmap.lease import MappingLease, Standing
from p2ptrain.portmap.router import Router
from p2ptrain.portmap.values import Protocol


def try_ports(
    router: Router,
    nonces: Mapping[int, bytes],
    interruption: Interruption,
    protocols: tuple[Protocol, ...] = tuple(Protocol),
) -> Standing:
    """Return what the router opens. `nonces` are random: 12 bytes for each port."""
    lease = MappingLease(nonces, 0.0, protocols)
    while (request := lease.next_request(0.0)) is not None and not interruption.stopped:
        lease.handle(request, router.ask(request, interruption), 0.0)
    standing = lease.standing
    for removal in lease.removals():
        router.ask(removal, interruption)
    return standing
