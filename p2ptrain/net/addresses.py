"""The addresses that users paste and peers announce: /ip4/203.0.113.7/tcp/4201/p2p/12D3Koo…

Only an IP address or a DNS name with a TCP port is accepted, because p2ptrain has no other
transport. This module does not use libp2p and does not check whether anybody answers at an address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from p2ptrain.errors import ConfigError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId

CHARACTERS_MAX = 400
"""Maximum characters of an address. A DNS name has at most 253 characters."""

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """The address where a peer listens. `peer` is None if the address does not name a peer."""

    kind: str
    host: str
    port: int
    peer: PeerId | None = None

    def __str__(self) -> str:
        return self.transport + (f"/p2p/{self.peer}" if self.peer else "")

    @property
    def transport(self) -> str:
        """The address without the peer."""
        return f"/{self.kind}/{self.host}/tcp/{self.port}"

    @property
    def is_name(self) -> bool:
        return self.kind.startswith("dns")

    @property
    def is_unspecified(self) -> bool:
        """Whether the host is 0.0.0.0 or ::, on which a node can listen but which nobody can
        dial."""
        return not self.is_name and ipaddress.ip_address(self.host).is_unspecified

    def of_peer(self, peer: PeerId) -> Address:
        return replace(self, peer=peer)


def parse(text: str) -> Address:
    """Return the address that `text` contains.

    Raises:
        ConfigError: ADDR-SYNTAX; the error says which part of `text` is wrong.
    """
    if len(text) > CHARACTERS_MAX or not text.isascii():
        raise _syntax(text, "it is too long or contains a character that is not allowed")
    parts = text.strip().split("/")
    if parts[0] or len(parts) not in (5, 7):
        raise _syntax(text, "an address has the form /ip4/HOST/tcp/PORT/p2p/PEER")
    _, kind, host, transport, port, *peer = parts
    if transport != "tcp":
        raise _syntax(text, f"p2ptrain uses tcp only, not {transport!r}")
    _check_host(text, kind, host)
    if not (port.isdigit() and int(port[:6]) < 1 << 16):
        raise _syntax(text, f"{port!r} is not a port")
    if not peer:
        return Address(kind, host, int(port))
    if peer[0] != "p2p" or not is_peer_id(peer[1]):
        raise _syntax(text, f"{peer[1]!r} is not a peer id")
    return Address(kind, host, int(port), PeerId(peer[1]))


def parse_with_peer(text: str) -> tuple[Address, PeerId]:
    """Parse an address to dial, which must name the peer that should answer.

    Raises:
        ConfigError: ADDR-SYNTAX, ADDR-NO-PEER-ID.
    """
    address = parse(text)
    if address.peer is None:
        raise ConfigError(
            f"the address {text} does not name its peer",
            code="ADDR-NO-PEER-ID",
            likely="the end of the address, /p2p/12D3KooW…, was cut off",
            do="ask for the complete address: without the peer id, any peer could answer",
        )
    return address, address.peer


def parse_told(texts: Iterable[str], peer: PeerId) -> list[Address]:
    """Return the addresses in `texts` that can be dialled. `texts` come from `peer` itself or from
    what others say about `peer`. Leave out malformed addresses and addresses of other peers."""
    addresses = []
    for text in texts:
        try:
            address = parse(text)
        except ConfigError:
            continue
        if address.peer in (None, peer) and address.port and not address.is_unspecified:
            addresses.append(address.of_peer(peer))
    return addresses


def _check_host(text: str, kind: str, host: str) -> None:
    if kind in ("dns", "dns4", "dns6"):
        if len(host) > 253 or not _NAME.fullmatch(host):
            raise _syntax(text, f"{host!r} is not a host name")
        return
    version = {"ip4": 4, "ip6": 6}.get(kind)
    if version is None:
        raise _syntax(text, f"{kind!r} is not ip4, ip6, dns, dns4 or dns6")
    try:
        # Python accepts any characters in a zone (fe80::1%eth0), but libp2p does not accept a zone.
        fits = "%" not in host and ipaddress.ip_address(host).version == version
    except ValueError:
        fits = False
    if not fits:
        raise _syntax(text, f"{host!r} is not an {kind} address")


def _syntax(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{text[:CHARACTERS_MAX]!r} is not an address: {reason}",
        code="ADDR-SYNTAX",
        likely="it was mistyped or cut off",
        do="give an address like /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…",
    )
