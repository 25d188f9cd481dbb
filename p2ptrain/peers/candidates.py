"""The addresses at which a peer's data plane may be reached, and which of them to dial.

A heartbeat lists up to four of them among its addresses, as texts such as
/ip4/203.0.113.7/tcp/4202/observed-data. An older version takes such a text for a malformed address
and skips it; so this extension needs no new version of the heartbeat. The heartbeat's endpoint
contains the first address alone, for the same reason.

A node dials an address in another peer's LAN only if the two peers have the same external address,
because they are then most likely in the same LAN. A peer does not prove its own addresses.
A liar can make others dial an address that does not answer with its certificate: they send
it the beginning of a TLS handshake, once for each dial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network

from p2ptrain.address_group import is_this_machine, site_of
from p2ptrain.dataplane import Endpoint
from p2ptrain.errors import RemoteProtocolError

CANDIDATES_MAX = 4
"""One of each kind. The heartbeat has room for eight addresses of both planes."""

TEXT_CHARACTERS_MAX = 120


LOCAL_IPV6 = ip_network("fc00::/7")
"""Addresses that are unique within local networks only (RFC 4193)."""


class Kind(StrEnum):
    """How a peer knows this address. The order is the order in which to dial."""

    LAN = "lan"
    """The address in its local network."""
    ANNOUNCED = "announced"
    """Given by its user, or opened by its router."""
    IPV6 = "ipv6"
    """A public IPv6 address of its machine."""
    OBSERVED = "observed"
    """Members at other sites see the peer at this host."""


_ORDER = {kind: number for number, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of a data plane.

    Raises:
        RemoteProtocolError: no machine in the network or LAN can have this address, or the port is
            out of range.
    """

    kind: Kind
    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            raise RemoteProtocolError(f"an address has the port {self.port}")
        try:
            address = ip_address(self.host)
        except ValueError as exc:
            raise RemoteProtocolError("an address has no valid host") from exc
        nowhere = address.is_multicast or address.is_unspecified or address.is_loopback
        # An IPv4 address in IPv6 form could hide a loopback address.
        hidden = isinstance(address, IPv6Address) and address.ipv4_mapped is not None
        if "%" in self.host or nowhere or hidden or address.is_link_local:
            raise RemoteProtocolError(f"nobody else can dial {self.host}")
        if self.kind is Kind.LAN and address.is_global:
            raise RemoteProtocolError(f"{self.host} is not in a local network")
        if self.kind is Kind.IPV6 and (address.version == 4 or address in LOCAL_IPV6):
            raise RemoteProtocolError(f"{self.host} is not a public IPv6 address")

    def __str__(self) -> str:
        family = "ip6" if ":" in self.host else "ip4"
        return f"/{family}/{self.host}/tcp/{self.port}/{self.kind}-data"


def candidates_in(texts: Iterable[str]) -> tuple[Candidate, ...]:
    """Return the candidates among the addresses of a heartbeat, the first of each kind. Texts of
    other forms are skipped, as are invalid candidates."""
    found = dict[Kind, Candidate]()
    for text in texts:
        candidate = _parsed(text)
        if candidate is not None:
            found.setdefault(candidate.kind, candidate)
    return tuple(found.values())


def _parsed(text: str) -> Candidate | None:
    parts = text.split("/")
    if len(text) > TEXT_CHARACTERS_MAX or len(parts) != 6 or not parts[5].endswith("-data"):
        return None
    _, family, host, transport, port, said = parts
    kind = said.removesuffix("-data")
    if transport != "tcp" or kind not in _ORDER or not (port.isascii() and port.isdigit()):
        return None
    if family != ("ip6" if ":" in host else "ip4") or len(port) > 5:
        return None
    try:
        return Candidate(Kind(kind), host, int(port))
    except RemoteProtocolError:
        return None


def share_site(candidates: Iterable[Candidate], external_host: str) -> bool:
    """Return whether the peer with these candidates says that it has the external address
    `external_host`, at which others see this node; "" is unknown."""
    outside = [each.host for each in candidates if each.kind is not Kind.LAN]
    return bool(external_host) and site_of(external_host) in map(site_of, outside)


def to_dial(endpoint: Endpoint, candidates: Sequence[Candidate], external_host: str) -> Endpoint:
    """Return `endpoint` with the addresses to dial, in order. `external_host` is the address at
    which others see this node; "" is unknown.

    In a shared LAN, its address comes first: a router that sends packets back into its own network
    is slow, and many cannot do it. Otherwise an address in the peer's LAN is left out, unless the
    peer has no other address."""
    near = share_site(candidates, external_host)
    chosen = sorted(candidates, key=lambda each: _ORDER[each.kind])
    places = [(each.host, each.port) for each in chosen if near or each.kind is not Kind.LAN]
    first = endpoint.host, endpoint.port
    if first not in [(each.host, each.port) for each in candidates]:
        # The peer puts its best address into the endpoint.
        places.insert(1 if near and places else 0, first)
    if len(places) > 1:
        # A loopback address is dialled alone or never, so that `may_be_at` can judge it.
        places = [place for place in places if not is_this_machine(place[0])]
    places = list(dict.fromkeys(places))[:CANDIDATES_MAX]
    if not places:
        return endpoint
    (host, port), *others = places
    return replace(endpoint, host=host, port=port, others=tuple(others))
