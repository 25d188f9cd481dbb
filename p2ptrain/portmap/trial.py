"""Find out once, without a node, whether the router opens ports: open them, and close them again.

For a diagnosis of this machine. Do not use it for the ports of a node that is running, since it
closes them. The functions block for at most half a minute; `Interruption` ends them earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from p2ptrain.portmap.datagrams import Interruption
from p2ptrain.portmap.lease import MappingLease, Standing
from p2ptrain.portmap.router import Router
from p2ptrain.portmap.values import MapRequest, Protocol

LIFETIME_S = 300
"""Seconds after which the ports close by themselves if this process is killed in the meantime."""


@contextmanager
def opened_ports(
    router: Router,
    nonces: Mapping[int, bytes],
    interruption: Interruption,
    protocols: tuple[Protocol, ...] = tuple(Protocol),
) -> Iterator[Standing]:
    """Yield what the router opens, and close the ports at the end of the block. `nonces` are
    random: 12 bytes for each port."""
    lease = MappingLease(nonces, 0.0, protocols)
    try:
        while (request := lease.next_request(0.0)) is not None and not interruption.stopped:
            asked = request
            if isinstance(request, MapRequest):
                asked = replace(request, lifetime_s=LIFETIME_S)
            lease.handle(request, router.ask(asked, interruption), 0.0)
        yield lease.standing
    finally:
        with Interruption() as never:
            for removal in lease.removals():
                router.ask(removal, never)


def try_ports(
    router: Router,
    nonces: Mapping[int, bytes],
    interruption: Interruption,
    protocols: tuple[Protocol, ...] = tuple(Protocol),
) -> Standing:
    """Return what the router opens, and close the ports again; otherwise as `opened_ports`."""
    with opened_ports(router, nonces, interruption, protocols) as standing:
        return standing
