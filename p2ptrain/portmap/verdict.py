"""Judge what open ports are worth: does the internet end at this router?

A router behind another NAT opens ports that nobody on the internet reaches. Two signs show this:
the router's own external address is private or shared (100.64.0.0/10), or members see us at a
different address.

Whose word is it? The router tells its external address, and members tell at which address they see
us. A liar can make us report a blocked port, or offer a useless candidate; neither is announced
before a member has connected through it, so a liar gains nothing more. A single member that sees us
at the router's address overrules all others, so that one liar cannot hide a working port from all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.portmap.lease import OpenPort, Standing
from p2ptrain.portmap.values import IPAddress, Protocol


class Kind(StrEnum):
    MAPPED = "mapped"
    """All ports are open."""
    HALF = "half"
    """Some ports are open."""
    CARRIER = "mapped but blocked by the carrier"
    """The router opens ports, but another NAT lies between it and the internet."""
    NONE = "not mapped"
    ASKING = "asking"
    """The router's replies are still missing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind`, and a sentence for the user: what happened, why, and what to do."""

    kind: Kind
    words: str


def judge(standing: Standing, observed: Collection[IPAddress], local: IPAddress | None) -> Verdict:
    """Return the verdict. `observed` are the addresses at which members see this node, and `local`
    is our own address in the local network. Members in the same network see us at that one, which
    says nothing about the router."""
    if standing.asking:
        ports = _listed(standing.wanted)
        return Verdict(Kind.ASKING, f"this node is asking your router to open TCP {ports}")
    if not standing.open_ports:
        return _without_ports(standing, local)
    external = standing.open_ports[0].address
    outside = {address for address in observed if address != local}
    opened = _opened(standing.open_ports)
    if why := _carrier(external, outside, local):
        return Verdict(Kind.CARRIER, f"{opened}, but {why}, so peers cannot reach them")
    if standing.closed:
        return Verdict(
            Kind.HALF,
            f"{opened}, but not TCP {_listed(standing.closed)} ({standing.reason}); "
            f"{_forward(standing.closed, local)}",
        )
    minutes = max(1, round(min(each.renewed_every_s for each in standing.open_ports) / 60))
    return Verdict(Kind.MAPPED, f"{opened}, renewed every {minutes} min")


def candidates(verdict: Verdict, standing: Standing) -> dict[int, tuple[IPAddress, int]]:
    """Return, for each of our ports, the address and port at which peers may reach it.

    These are candidates only. Announce one after a member has connected through it."""
    if verdict.kind not in (Kind.MAPPED, Kind.HALF):
        return {}
    return {each.internal_port: (each.address, each.port) for each in standing.open_ports}


def _carrier(external: IPAddress, outside: set[IPAddress], local: IPAddress | None) -> str:
    """Return why another NAT must lie behind the router; "" if nothing shows one."""
    if external in outside or external == local:
        return ""
    if not external.is_global:
        return f"its own address {external} is not public: your provider has another NAT"
    seen = sorted(str(address) for address in outside if address.version == external.version)
    if seen:
        return f"peers see you at {seen[0]}, not at its address {external}: there is another NAT"
    return ""


def _without_ports(standing: Standing, local: IPAddress | None) -> Verdict:
    did_not = f"your router did not open TCP {_listed(standing.wanted)} ({standing.reason})"
    if standing.no_address:
        return Verdict(
            Kind.CARRIER,
            f"{did_not}: probably your provider has another NAT; to be reached directly, ask your "
            "provider for a public IPv4 address, or use IPv6",
        )
    return Verdict(Kind.NONE, f"{did_not}; {_forward(standing.wanted, local)}")


def _opened(opened: tuple[OpenPort, ...]) -> str:
    protocol: Protocol = opened[0].protocol
    ports = [
        str(each.port)
        if each.port == each.internal_port
        else f"{each.port} (your port {each.internal_port})"
        for each in opened
    ]
    return f"your router opened TCP {' and '.join(ports)} by {protocol}"


def _forward(ports: tuple[int, ...], local: IPAddress | None) -> str:
    where = f" to {local}" if local is not None else ""
    return f"if peers cannot reach you, forward TCP {_listed(ports)}{where} on your router"


def _listed(ports: tuple[int, ...]) -> str:
    return " and ".join(map(str, ports))
