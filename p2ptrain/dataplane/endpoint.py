"""The address of a peer's data plane, as peers announce it in their heartbeats.

An endpoint has an IP address, never a host name, because resolving a name can block a thread
without a deadline.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from p2ptrain.dataplane.certificates import CERTIFICATE_BYTES_MAX
from p2ptrain.encoding import fields
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId

OTHERS_MAX = 3
"""Maximum number of addresses besides the first one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The data plane of `peer` listens at `host`:`port` and identifies itself by the certificate.
    It may also be reached at the `others`, which are tried in order. They are not part of an
    endpoint on the wire; heartbeats contain them separately.

    Raises:
        RemoteProtocolError: a field has an invalid value.
    """

    peer: PeerId
    host: str
    port: int
    certificate_der: bytes = field(repr=False)
    others: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not is_peer_id(self.peer):
            raise RemoteProtocolError("an endpoint's peer is not a valid peer id")
        if len(self.others) > OTHERS_MAX:
            raise RemoteProtocolError("an endpoint has too many addresses", peer=self.peer)
        for host, port in ((self.host, self.port), *self.others):
            if len(host) > 64 or not _is_address(host):
                raise RemoteProtocolError("an endpoint's host is not an IP address", peer=self.peer)
            if not 0 < port < 1 << 16:
                raise RemoteProtocolError(
                    f"an endpoint's port is out of range: {port}", peer=self.peer
                )
        if not 0 < len(self.certificate_der) <= CERTIFICATE_BYTES_MAX:
            raise RemoteProtocolError(
                "an endpoint's certificate is empty or too long", peer=self.peer
            )

    def each_place(self) -> Iterator[Endpoint]:
        """Yield one endpoint for each address, in the order in which to try them."""
        for host, port in ((self.host, self.port), *self.others):
            yield replace(self, host=host, port=port, others=())

    def to_wire(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "host": self.host,
            "port": self.port,
            "certificate": self.certificate_der,
        }

    @classmethod
    def from_wire(cls, value: object) -> Endpoint:
        """Parse an endpoint that a peer sent. Raises RemoteProtocolError if it is malformed."""
        wire: dict[str, Any] = {**fields(value, peer=str, host=str, port=int, certificate=bytes)}
        return cls(PeerId(wire["peer"]), wire["host"], wire["port"], wire["certificate"])


def _is_address(text: str) -> bool:
    """Return whether `text` is an IP address without a zone. A zone ("fe80::1%eth0") names a
    network interface of this machine, which a peer cannot know; and Python accepts any characters
    in a zone."""
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
