"""Find the UPnP description of the router by SSDP: one question, and answers in the form of HTTP.

An answer counts only if the router itself sent it and if its description lies on the router. So no
other device on the local network can pose as the router, and the program that reads the description
connects to the router only.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap.datagrams import Interruption, wait_for
from p2ptrain.portmap.gateway import Gateway
from p2ptrain.portmap.values import PORT_MAX

GROUP, PORT = "239.255.255.250", 1900

WAITS_S = (0.5, 1.0)
"""Seconds to wait after each of the two questions. Routers may delay their answer by up to the MX
value of the question, which is 1 s."""

TYPES = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)

ANSWER_BYTES_MAX = 2048
URL_CHARACTERS_MAX = 256

_LOCATION = re.compile(r"(?im)^location:[ \t]*(\S+)[ \t]*\r?$")
_URL = re.compile(r"http://([0-9.]+)(?::([0-9]{1,5}))?(?:/[!-~]*)?", re.ASCII)
"""A strict form, because another program parses the address again, and perhaps differently."""


def question(kind: str) -> bytes:
    """Return the search for devices of type `kind`."""
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP}:{PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {kind}",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def location(answer: bytes, router: IPv4Address) -> str:
    """Return the address of the description.

    Raises RemoteProtocolError: `answer` is not an answer to our question, or the description does
    not lie on the router."""
    if len(answer) > ANSWER_BYTES_MAX:
        raise RemoteProtocolError("an SSDP answer is too long")
    try:
        text = answer.decode("ascii")
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError("an SSDP answer is not text") from exc
    found = _LOCATION.search(text)
    if not text.startswith("HTTP/1.1 200") or "InternetGatewayDevice" not in text or not found:
        raise RemoteProtocolError("an SSDP answer does not describe a router")
    return check_url(found[1], router)


def check_url(url: str, router: IPv4Address) -> str:
    """Return `url` if it is a plain http address on the router.
    Raises RemoteProtocolError."""
    found = _URL.fullmatch(url)
    if found is None or len(url) > URL_CHARACTERS_MAX or found[1] != str(router):
        raise RemoteProtocolError("the router's description does not lie on the router")
    if not 0 < int(found[2] or 80) <= PORT_MAX:
        raise RemoteProtocolError("the router's description lies at a port that does not exist")
    return url


def find_description(
    gateway: Gateway,
    interruption: Interruption,
    *,
    to: tuple[str, int] = (GROUP, PORT),
    waits_s: tuple[float, ...] = WAITS_S,
) -> str | None:
    """Return the address of the router's UPnP description; None if it does not answer.
    Raises OSError: the question cannot be sent."""
    router = gateway.address
    assert isinstance(router, IPv4Address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        interface = socket.inet_aton(str(gateway.local))
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        asking.bind((str(gateway.local), 0))
        for wait_s in waits_s:
            for kind in TYPES:
                asking.sendto(question(kind), to)
            accept: Callable[[bytes], str] = partial(location, router=router)
            found = wait_for(asking, accept, interruption, wait_s, source=str(router))
            if found is not None or interruption.stopped:
                return found
    return None
