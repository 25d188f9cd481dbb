"""Ask the router by UPnP: find its description by SSDP, then run `upnp_process` with a deadline."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from ipaddress import IPv4Address

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap import ssdp
from p2ptrain.portmap.datagrams import Interruption
from p2ptrain.portmap.gateway import Gateway
from p2ptrain.portmap.values import (
    Checked,
    CheckRequest,
    Closed,
    Granted,
    MapRequest,
    Refusal,
    Refused,
    Reply,
    Request,
    Silent,
)

PROCESS_S = 8.0
"""Deadline of the process. A slow router needs a second for each of the up to six steps."""

ANSWER_BYTES_MAX = 4096
REASON_CHARACTERS_MAX = 160

SearchAt = tuple[str, int]


class UpnpClient:
    """Asks one router by UPnP. Its methods block, for at most `PROCESS_S` and the search."""

    def __init__(self, gateway: Gateway, search_at: SearchAt = (ssdp.GROUP, ssdp.PORT)) -> None:
        self._gateway = gateway
        self._search_at = search_at
        self._url: str | None = None
        """The address of the router's description, once found."""

    def ask(self, request: Request, interruption: Interruption) -> Reply:
        """Carry out the request and return the router's reply."""
        if self._gateway.address.version != 4:
            return Refused(Refusal.UNSUPPORTED, "it is used for IPv4 only")
        try:
            if self._url is None:
                self._url = ssdp.find_description(self._gateway, interruption, to=self._search_at)
        except OSError as exc:
            return Silent(f"no search is possible ({exc.strerror or exc})")
        if self._url is None:
            return Silent("no router answers")
        said = run_process(question_of(request, self._url), interruption)
        try:
            reply = reply_of(request, said)
        except RemoteProtocolError as exc:
            reply = Silent(f"no usable answer ({exc.what})")
        if not isinstance(reply, Granted | Checked | Closed):
            self._url = None  # A router that restarts may describe itself at another port.
        return reply


def question_of(request: Request, url: str) -> dict[str, object]:
    """Return the question to the process."""
    match request:
        case MapRequest():
            return {
                "url": url,
                "do": "open",
                "internal": request.internal_port,
                "external": request.external_port or request.internal_port,
                "lifetime_s": request.lifetime_s,
            }
        case CheckRequest():
            return {"url": url, "do": "check", "ports": list(request.external_ports)}
    internal, external = request.internal_port, request.external_port
    return {"url": url, "do": "close", "internal": internal, "external": external}


def reply_of(request: Request, said: bytes) -> Reply:
    """Return the router's reply from the output of the process, which the router influences.

    Raises RemoteProtocolError: `said` is not an answer to the request."""
    try:
        value = json.loads(said)
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError("the program that asks by UPnP gave no answer") from exc
    match request, value:
        case _, {"refused": [str(kind), str(reason)]}:
            known = {each.value: each for each in Refusal}
            words = "".join(each for each in reason if each.isprintable())
            words = words[:REASON_CHARACTERS_MAX]
            return Refused(known.get(kind, Refusal.TEMPORARY), words)
        case MapRequest(), {"granted": [str(address), int(port)]}:
            found = _address(address)
            if found is None:
                raise RemoteProtocolError("the router opens a port of no address")
            return Granted(found, port, request.lifetime_s)
        case CheckRequest(), {"checked": [str(address), bool(mapped)]}:
            return Checked(_address(address), mapped=mapped)
        case _, {"closed": True}:
            return Closed()
    raise RemoteProtocolError("the program that asks by UPnP gave a malformed answer")


def _address(text: str) -> IPv4Address | None:
    """Return the address; None for an empty text or 0.0.0.0, which routers without a connection
    give. Raises RemoteProtocolError."""
    try:
        address = IPv4Address(text or 0)
    except ValueError as exc:
        raise RemoteProtocolError("the router's external address is malformed") from exc
    return None if address.is_unspecified else address


def run_process(
    question: dict[str, object], interruption: Interruption, deadline_s: float = PROCESS_S
) -> bytes:
    """Return the output of the process, or as much as there is when it is killed: at the deadline,
    after an interruption, or when it says too much."""
    command = [sys.executable, "-m", "p2ptrain.portmap.upnp_process", json.dumps(question)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            return _output(process.stdout.fileno(), interruption, time.monotonic() + deadline_s)
        finally:
            process.kill()


def _output(descriptor: int, interruption: Interruption, deadline: float) -> bytes:
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        selector.register(interruption, selectors.EVENT_READ)
        while len(said) < ANSWER_BYTES_MAX:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not selector.select(left_s) or interruption.stopped:
                break
            part = os.read(descriptor, ANSWER_BYTES_MAX)
            if not part:
                break
            said += part
    return said
