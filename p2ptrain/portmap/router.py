"""Carry out the requests of a lease: send them by the protocol that each one names.

A `Router` blocks and therefore belongs in a thread. Each request has a deadline: below 4 s by PCP
and NAT-PMP, and below 10 s by UPnP. `Interruption.stop` ends a request at once.

Whose word is it? Replies count only if they come from the gateway's own address, and those of PCP
only with our nonce. See `verdict` for what a lying router gains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import IPv4Address
from typing import TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap import natpmp, pcp, ssdp
from p2ptrain.portmap.datagrams import ROUTER_PORT, Interruption, NoAnswer, exchange
from p2ptrain.portmap.gateway import Gateway
from p2ptrain.portmap.upnp import UpnpClient
from p2ptrain.portmap.values import (
    Checked,
    CheckRequest,
    Closed,
    Granted,
    IPAddress,
    MapRequest,
    Protocol,
    Refusal,
    Refused,
    Reply,
    Request,
    Silent,
    UnmapRequest,
)

Results = Mapping[int, tuple[Refusal, str]]
Answer = TypeVar("Answer")


class Router:
    """Asks one gateway. Tests pass the ports at which their own gateway answers."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        port: int = ROUTER_PORT,
        search_at: tuple[str, int] = (ssdp.GROUP, ssdp.PORT),
    ) -> None:
        self.gateway = gateway
        self._port = port
        self._upnp = UpnpClient(gateway, search_at)

    def ask(self, request: Request, interruption: Interruption) -> Reply:
        """Carry out the request and return the router's reply."""
        match request.protocol:
            case Protocol.PCP:
                return self._ask_pcp(request, interruption)
            case Protocol.NAT_PMP:
                return self._ask_natpmp(request, interruption)
            case Protocol.UPNP:
                return self._upnp.ask(request, interruption)

    def _exchange(
        self, message: bytes, decode: Callable[[bytes], Answer], interruption: Interruption
    ) -> Answer | NoAnswer:
        return exchange(self.gateway, message, decode, interruption, port=self._port)

    def _ask_pcp(self, request: Request, interruption: Interruption) -> Reply:
        client = self.gateway.local
        if isinstance(request, CheckRequest):
            announced = self._exchange(pcp.announce_request(client), _pcp_check, interruption)
            return Silent(announced.reason) if isinstance(announced, NoAnswer) else announced
        mapping = _pcp_message(request, client)
        accept = partial(_pcp_reply, asked=mapping)
        found = self._exchange(mapping.to_bytes(), accept, interruption)
        return Silent(found.reason) if isinstance(found, NoAnswer) else found

    def _ask_natpmp(self, request: Request, interruption: Interruption) -> Reply:
        if self.gateway.address.version != 4:
            return Refused(Refusal.UNSUPPORTED, "it is used for IPv4 only")
        if isinstance(request, UnmapRequest):
            message = natpmp.map_request(request.internal_port, 0, 0)
            accept = partial(_natpmp_map, internal_port=request.internal_port)
            closed = self._exchange(message, accept, interruption)
            return Silent(closed.reason) if isinstance(closed, NoAnswer) else Closed()
        address = self._exchange(natpmp.ADDRESS_REQUEST, natpmp.decode_address, interruption)
        if isinstance(address, NoAnswer):
            return Silent(address.reason)
        if address.result or address.address is None:
            return _refused(address.result, natpmp.RESULTS)
        if address.address.is_unspecified:
            return _refused(3, natpmp.RESULTS)
        try:
            if isinstance(request, CheckRequest):
                return Checked(address.address, address.uptime_s)
            return self._natpmp_open(request, address.address, interruption)
        except RemoteProtocolError as exc:
            return Silent(exc.what)

    def _natpmp_open(
        self, request: MapRequest, address: IPv4Address, interruption: Interruption
    ) -> Reply:
        """Raises RemoteProtocolError: the router's values are not possible."""
        message = natpmp.map_request(
            request.internal_port, request.external_port, request.lifetime_s
        )
        accept = partial(_natpmp_map, internal_port=request.internal_port)
        found = self._exchange(message, accept, interruption)
        if isinstance(found, NoAnswer):
            return Silent(found.reason)
        if found.result:
            return _refused(found.result, natpmp.RESULTS)
        return Granted(address, found.external_port, found.lifetime_s, found.uptime_s)


def _refused(result: int, results: Results) -> Refused:
    unknown = (Refusal.TEMPORARY, f"it answers with error {result}")
    return Refused(*results.get(result, unknown))


def _pcp_message(request: MapRequest | UnmapRequest, client: IPAddress) -> pcp.MapMessage:
    lifetime_s = request.lifetime_s if isinstance(request, MapRequest) else 0
    external = request.external_port if isinstance(request, MapRequest) else 0
    return pcp.MapMessage(client, request.nonce, request.internal_port, lifetime_s, external)


def _pcp_check(data: bytes) -> Checked | Refused:
    """Raises RemoteProtocolError: `data` is not the answer to an ANNOUNCE request."""
    if pcp.is_other_version(data):
        return _refused(1, pcp.RESULTS)
    found = pcp.decode_announcement(data)
    return Checked(uptime_s=found.uptime_s)


def _pcp_reply(data: bytes, asked: pcp.MapMessage) -> Granted | Refused | Closed:
    """Raises RemoteProtocolError: `data` is not the answer to `asked`."""
    if pcp.is_other_version(data):
        return _refused(1, pcp.RESULTS)
    found = pcp.decode_map(data)
    if found.nonce != asked.nonce or found.internal_port != asked.internal_port:
        raise RemoteProtocolError("a PCP response belongs to a different request")
    if found.result:
        return _refused(found.result, pcp.RESULTS)
    if not asked.lifetime_s:
        return Closed()
    if found.external_address.version != asked.client.version:
        raise RemoteProtocolError("the router names an external address of the other kind of IP")
    return Granted(found.external_address, found.external_port, found.lifetime_s, found.uptime_s)


def _natpmp_map(data: bytes, internal_port: int) -> natpmp.MapResponse:
    """Raises RemoteProtocolError: `data` is not the answer about this port."""
    found = natpmp.decode_map(data)
    if not found.result and found.internal_port != internal_port:
        raise RemoteProtocolError("a NAT-PMP response is about a different port")
    return found
