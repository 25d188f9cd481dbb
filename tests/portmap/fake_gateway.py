"""A gateway on 127.0.0.x that answers PCP, NAT-PMP and SSDP like a script, and a UPnP router.

Messages are taken apart here with `struct` alone, as a second implementation of the layouts.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address

from p2ptrain.portmap.gateway import Gateway

HOST, OUR_HOST, STRANGER = "127.0.0.9", "127.0.0.1", "127.0.0.8"
GATEWAY = Gateway(IPv4Address(HOST), IPv4Address(OUR_HOST))
OUTSIDE = "203.0.113.7"

Script = Callable[[bytes], list[bytes]]


@dataclass
class FakeGateway:
    """Answers each datagram with those that `script` returns."""

    script: Script
    host: str = HOST
    received: list[bytes] = field(default_factory=list)
    askers: list[tuple[str, int]] = field(default_factory=list)
    """The addresses from which `received` came."""
    port: int = 0


@contextmanager
def fake_gateway(script: Script, host: str = HOST) -> Iterator[FakeGateway]:
    fake = FakeGateway(script, host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answering:
        answering.bind((host, 0))
        fake.port = answering.getsockname()[1]

        def serve() -> None:
            while (data := answering.recvfrom(2048))[0] != b"end":
                fake.received.append(data[0])
                fake.askers.append(data[1])
                for reply in fake.script(data[0]):
                    answering.sendto(reply, data[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield fake
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
                ending.sendto(b"end", (host, fake.port))
            thread.join()


def pcp_response(request: bytes, **changes: int | bytes) -> bytes:
    """Return the response of a router that grants what `request` asks."""
    lifetime_s = struct.unpack(">I", request[4:8])[0]
    usual: dict[str, int | bytes] = {
        "version": 2,
        "opcode": 0x80 | request[1],
        "result": 0,
        "lifetime_s": lifetime_s,
        "uptime_s": 1000,
        "nonce": request[24:36],
        "ports": request[40:44],
        "address": bytes(10) + b"\xff\xff" + socket.inet_aton(OUTSIDE),
    }
    values = {**usual, **changes}
    numbers = [values[name] for name in ("version", "opcode", "result", "lifetime_s", "uptime_s")]
    header = struct.pack(">BBxBII12x", *numbers)
    if request[1] == 0:
        return header
    named = [values[name] for name in ("nonce", "ports", "address")]
    nonce, ports, address = (each for each in named if isinstance(each, bytes))
    return header + nonce + request[36:40] + ports + address


def natpmp_response(request: bytes, address: str = OUTSIDE, lifetime_s: int | None = None) -> bytes:
    """Return the response of a router that grants what `request` asks."""
    if request[1] == 0:
        return struct.pack(">BBHI", 0, 128, 0, 1000) + socket.inet_aton(address)
    internal, external, asked_s = struct.unpack(">HHI", request[4:12])
    granted_s = asked_s if lifetime_s is None else lifetime_s
    return struct.pack(">BBHIHHI", 0, 130, 0, 1000, internal, external, granted_s)


@dataclass
class FakeIgd:
    """A UPnP router. `mappings`: external port → (host, internal port, lease). `error`: the UPnP
    error of each new mapping with an end."""

    url: str = ""
    external: str = OUTSIDE
    mappings: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    error: int = 0
    asked: list[str] = field(default_factory=list)


@contextmanager
def fake_igd(host: str = HOST) -> Iterator[FakeIgd]:
    igd = FakeIgd()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, DEVICE)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            action = self.headers["SOAPAction"].strip('"').partition("#")[2]
            igd.asked.append(action)
            self._answer(*soap(igd, action, body))

        def _answer(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        igd.url = f"http://{host}:{server.server_port}/device.xml"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield igd
        finally:
            server.shutdown()
            thread.join()


def soap(igd: FakeIgd, action: str, body: str) -> tuple[int, str]:
    """Carry out an action, and return the HTTP status and text."""
    port = int(_argument(body, "NewExternalPort") or 0)
    held = igd.mappings.get(port)
    if action == "GetExternalIPAddress":
        return _said(action, NewExternalIPAddress=igd.external)
    if action == "GetSpecificPortMappingEntry":
        if held is None:
            return _fault(714, "NoSuchEntryInArray")
        return _said(action, NewInternalClient=held[0], NewInternalPort=held[1], NewEnabled=1)
    if action == "DeletePortMapping":
        del igd.mappings[port]
        return _said(action)
    lease = int(_argument(body, "NewLeaseDuration"))
    if igd.error and lease:
        return _fault(igd.error, "Refused")
    internal = int(_argument(body, "NewInternalPort"))
    igd.mappings[port] = (_argument(body, "NewInternalClient"), internal, lease)
    return _said(action)


def _argument(body: str, name: str) -> str:
    found = re.search(f"<{name}[^>]*>([^<]*)</{name}>", body)
    return found[1] if found else ""


SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
DEVICE = f"""<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0"><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><serviceList><service>
<serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>/control</controlURL><eventSubURL>/event</eventSubURL><SCPDURL>/scpd</SCPDURL>
</service></serviceList></device></deviceList></device></deviceList></device></root>"""


def _said(action: str, **values: object) -> tuple[int, str]:
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
    return 200, _envelope(f'<u:{action}Response xmlns:u="{SERVICE}">{inside}</u:{action}Response>')


def _fault(code: int, words: str) -> tuple[int, str]:
    error = f"<errorCode>{code}</errorCode><errorDescription>{words}</errorDescription>"
    return 500, _envelope(f"<s:Fault><detail><UPnPError>{error}</UPnPError></detail></s:Fault>")


def _envelope(inside: str) -> str:
    return (
        '<?xml version="1.0"?><s:Envelope xmlns:s="urn:envelope">'
        f"<s:Body>{inside}</s:Body></s:Envelope>"
    )
