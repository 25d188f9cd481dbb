"""Say in words how other members reach this node, and what its user can do about it.

The verdict has one of eight values, each with a sentence in the second person. It is computed from
facts that other modules find out: whether the two ports are reached (`reach_evidence`), which ports
the router has opened, and how many members are connected through punched holes or relays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.peers.reach_evidence import PortsReached


class Reach(StrEnum):
    """How other members reach this node."""

    OPEN = "open"
    """They connect to it directly."""
    MAPPED = "mapped"
    """They connect to ports that the router has opened at this node's request."""
    PUNCHED = "punched"
    """They connect by hole punching."""
    RELAYED = "relayed"
    """Some of them connect through other members."""
    HALF = "half"
    """They reach one of the two ports."""
    BLOCKED = "mapped but blocked by the carrier"
    """The router has opened the ports, but no connection from outside arrives."""
    CLOSED = "closed"
    """They reach neither port, and there is no other way yet."""
    UNKNOWN = "unknown"
    """Too few members at other sites have tried."""


@dataclass(frozen=True, slots=True)
class OpenedPorts:
    """The external ports that the router has opened by `protocol`, such as "UPnP". The node renews
    them every `renewed_every_s` seconds."""

    protocol: str
    control_port: int
    data_port: int
    renewed_every_s: float


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """The address of this node in its local network, and its two ports. `translated`: whether a
    router translates that address, as far as this node knows. If not, only a firewall can be in the
    way."""

    lan_host: str
    control_port: int
    data_port: int
    translated: bool = True

    @property
    def ports(self) -> str:
        return f"TCP {self.control_port} and {self.data_port}"


@dataclass(frozen=True, slots=True)
class OtherWays:
    """The members that are connected by other ways than a plain dial. `members` counts all other
    members."""

    punched: int = 0
    relayed: int = 0
    members: int = 0


NO_OTHER_WAYS = OtherWays()


@dataclass(frozen=True, slots=True)
class Verdict:
    reach: Reach
    sentence: str

    @property
    def words(self) -> str:
        return f"{self.reach}: {self.sentence}"


NOT_ASKED = Verdict(
    Reach.UNKNOWN, "too few members at other sites have tried to connect to you yet"
)


def verdict(
    ports: PortsReached,
    place: OwnPlace,
    opened: OpenedPorts | None = None,
    other_ways: OtherWays = NO_OTHER_WAYS,
) -> Verdict:
    """Return how other members reach this node. `opened` is None if no router has opened ports for
    this node."""
    if ports.data and ports.control:
        return _direct(place, opened)
    if ports.data and ports.control is None:
        return NOT_ASKED  # Members may still find out that the control port is not reached.
    if {ports.control, ports.data} == {True, False}:
        return _half(ports, place)
    if opened is not None and ports.data is False:
        return _blocked(opened, other_ways)
    if other_ways.relayed:
        return Verdict(
            Reach.RELAYED,
            f"{other_ways.relayed} of {other_ways.members} members reach you through others; "
            f"forward TCP {place.data_port} to {place.lan_host} for more speed",
        )
    if other_ways.punched:
        return Verdict(
            Reach.PUNCHED,
            "your provider shares one address among customers; peers reach you by hole punching; "
            "nothing to do",
        )
    return _closed(place) if ports.data is False else NOT_ASKED


def _direct(place: OwnPlace, opened: OpenedPorts | None) -> Verdict:
    if opened is None:
        return Verdict(Reach.OPEN, f"members connect to you directly at {place.ports}")
    every_min = max(1, round(opened.renewed_every_s / 60))
    return Verdict(
        Reach.MAPPED,
        f"your router opened TCP {opened.control_port} and {opened.data_port} by "
        f"{opened.protocol}, renewed every {every_min} min",
    )


def _half(ports: PortsReached, place: OwnPlace) -> Verdict:
    reached, missing, port = "control", "data", place.data_port
    if ports.data:
        reached, missing, port = "data", "control", place.control_port
    fix = f"forward TCP {port} too" if place.translated else f"open TCP {port} in your firewall too"
    return Verdict(Reach.HALF, f"{reached} port reached, {missing} port not: {fix}")


def _blocked(opened: OpenedPorts, other_ways: OtherWays) -> Verdict:
    """`opened` shows that the router works, so the obstacle lies behind it."""
    fix = "ask your provider for a public address, or use IPv6"
    if other_ways.punched or other_ways.relayed:
        fix = f"peers reach you by hole punching or through others; for more speed, {fix}"
    return Verdict(
        Reach.BLOCKED,
        f"your router opened TCP {opened.control_port} and {opened.data_port} by "
        f"{opened.protocol}, but your provider blocks connections from outside; {fix}",
    )


def _closed(place: OwnPlace) -> Verdict:
    return Verdict(
        Reach.CLOSED,
        "members cannot connect to you, so you connect to them, if necessary by hole punching or "
        "through others; to be reached directly, "
        + (
            f"forward {place.ports} to {place.lan_host} on your router"
            if place.translated
            else f"open {place.ports} in your firewall"
        ),
    )
