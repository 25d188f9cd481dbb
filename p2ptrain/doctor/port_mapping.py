"""Check whether the router opens ports at a node's request: open both ports, and close them again.

The ports of a node that is running here are left alone. Modules that load slowly are imported when
the check runs.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.archive.home import is_in_use
from p2ptrain.doctor.finding import Finding, Tell, good, warning
from p2ptrain.doctor.ports import addresses_of
from p2ptrain.doctor.subject import Learned, OpenMapping, Subject
from p2ptrain.portmap import (
    NONCE_BYTES,
    Gateway,
    Interruption,
    IPAddress,
    Kind,
    NoGateway,
    Router,
    Standing,
    find_gateway,
    judge,
    try_ports,
)
from p2ptrain.suggested_command import to_paste

NAME = "port mapping"

TRIAL_S = 8.0
"""Deadline of the trial in seconds. A router that drops all requests costs five."""

OUTBOUND_ONLY = "NET-OUTBOUND-ONLY"


@dataclass(frozen=True, slots=True)
class MappingFacts:
    """The outcome of the trial. `not_tried` says why there was none; `local` is our address in the
    router's network."""

    not_tried: str = ""
    standing: Standing | None = None
    local: IPAddress | None = None
    seen: tuple[IPAddress, ...] = ()


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_mapping(facts: MappingFacts) -> Finding:
    if facts.standing is None:
        return good(NAME, f"not tried: {facts.not_tried}")
    standing = facts.standing
    found = judge(standing, facts.seen, facts.local)
    ports = " and ".join(map(str, standing.closed or standing.wanted))
    where = f" to {facts.local}" if facts.local else ""
    forward = f"forward TCP {ports}{where} in the router's settings"
    if found.kind is Kind.MAPPED:
        opened = standing.open_ports[0]
        numbers = " and ".join(str(each.port) for each in standing.open_ports)
        said = f"your router opened TCP {numbers} by {opened.protocol}, and closed them again"
        return good(NAME, f"{said}; a node does the same by itself")
    if found.kind is Kind.CARRIER:
        return warning(
            NAME,
            _without_advice(found.words),
            fix="ask your provider for a public IPv4 address, or use IPv6; a node runs without it, "
            "and others reach it by hole punching or through other members",
            code=OUTBOUND_ONLY,
        )
    if found.kind is Kind.HALF:
        missing = " and ".join(map(str, standing.closed))
        said = f"your router opened only one of the two ports, and not TCP {missing}"
        return warning(NAME, f"{said} ({standing.reason})", fix=forward, code=OUTBOUND_ONLY)
    reasons = standing.reason or "it did not answer in time"
    return warning(
        NAME,
        f"your router does not open ports by itself ({reasons})",
        fix=f"if members cannot connect to you, switch on UPnP or NAT-PMP in the router's "
        f"settings, or {forward}",
    )


def _without_advice(words: str) -> str:
    return words.partition("; to be reached directly")[0]


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def port_mapping(subject: Subject, learned: Learned, tell: Tell) -> None:
    """Ask the router to open both ports, and to close them again."""
    facts = _facts(subject, learned)
    tell(judge_mapping(facts))


def _facts(subject: Subject, learned: Learned) -> MappingFacts:
    gateway = find_gateway(4)
    if why := _why_not(subject, learned, gateway):
        return MappingFacts(why)
    assert isinstance(gateway, Gateway)
    control, data = ports_of(subject)
    with Interruption() as interruption:
        ends = threading.Timer(TRIAL_S, interruption.stop)
        ends.start()
        try:
            standing = try_ports(Router(gateway), nonces(subject, control, data), interruption)
        finally:
            ends.cancel()
            ends.join()
    if len(standing.open_ports) == 2:
        learned.mapping = OpenMapping(gateway, standing)
    return MappingFacts("", standing, gateway.local)


def _why_not(subject: Subject, learned: Learned, gateway: Gateway | NoGateway) -> str:
    """Return why the router is not asked; "" if there is no reason."""
    from p2ptrain.node.port_mapping.keep_mapped import NOT_OUTSIDE, SWITCHED_OFF, unneeded

    config = subject.config
    if not config.port_mapping:
        return SWITCHED_OFF
    if is_in_use(subject.home.lock):
        status = to_paste(config.home, "status")
        return f"the node that is running here asks the router itself; see {status}"
    if not learned.are_ports_free:
        return "a node could not listen on both ports now"
    if why := unneeded(gateway):
        return why
    return "" if is_outside(subject) else NOT_OUTSIDE


def is_outside(subject: Subject) -> bool:
    from p2ptrain.net.addresses import parse
    from p2ptrain.net.listening import dialable
    from p2ptrain.node.port_mapping.own_ports import own_ports

    config = subject.config
    listening = [parse(each) for each in addresses_of(config)]
    control = [str(own) for own in dialable(listening)]
    data_host = config.data_host or "::"  # The default: all addresses, of both versions of IP.
    found = own_ports(control, (data_host, config.data_port or 1)).get(4)
    return found is not None and bool(found.control and found.data)


def ports_of(subject: Subject) -> tuple[int, int]:
    """Return the ports of a node with these settings; free ones if the system chooses."""
    from p2ptrain.net.addresses import parse

    control = next(iter(parse(each).port for each in addresses_of(subject.config)), 0)
    return control or _free_port(), subject.config.data_port or _free_port()


def _free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def nonces(subject: Subject, *ports: int) -> dict[int, bytes]:
    """Return the nonces by which a router knows the owner of its mappings: those of the node in the
    home, or random ones if it has no key. A node that was killed may have left its mapping, which
    only the same nonce can change."""
    from p2ptrain.identity import load_or_create
    from p2ptrain.node.port_mapping.keep_mapped import nonce_of

    path: Path = subject.home.identity
    if not os.path.isfile(path):
        return {port: os.urandom(NONCE_BYTES) for port in ports}
    identity = load_or_create(path)
    return {port: nonce_of(identity, port) for port in ports}
