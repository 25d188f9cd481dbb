"""Find out what kind of NAT this machine is behind: members tell the address and port from which a
connection of ours arrives.

Two members are called from one local port. A NAT that shows both the same external port keeps one
mapping for each local port (a cone NAT), and hole punching works with it. A symmetric NAT shows
each of them another port, so that no peer can know the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, ip_address

from p2ptrain.dataplane import DialHandle, LocalPort, Observation, observe
from p2ptrain.doctor.finding import Finding, Tell, good, warning
from p2ptrain.doctor.port_mapping import OUTBOUND_ONLY
from p2ptrain.doctor.subject import Learned
from p2ptrain.doctor.visit import Visit, Witness
from p2ptrain.errors import P2PTrainError
from p2ptrain.names import label
from p2ptrain.node.gossip.own_addresses import own_addresses
from p2ptrain.node.state.threads import in_thread
from p2ptrain.portmap import IPAddress

NAME = "NAT kind"

OBSERVE_S = 6.0

CARRIERS = IPv4Network("100.64.0.0/10")
"""Addresses between a carrier's NAT and its customers (RFC 6598)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """`member` sees our connections at this address and port."""

    member: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NatFacts:
    """The places at which members at other sites see connections from one local port. `own_hosts`
    are the addresses of this machine, `lan_host` is the one towards the internet, and `router` the
    external address that the router tells, if it tells one."""

    seen: Sequence[Seen]
    failed: Sequence[str] = ()
    own_hosts: Collection[str] = ()
    lan_host: str = ""
    router: IPAddress | None = None


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_nat(facts: NatFacts) -> Finding:
    if not facts.seen:
        return _unknown(facts)
    first = facts.seen[0]
    if first.host in facts.own_hosts:
        return good(NAME, f"none: members see this machine at its own address {first.host}")
    double = _is_double(facts, first.host)
    where = "two NATs, your router's and one of your provider" if double else "a NAT"
    if len(facts.seen) == 1:
        return good(
            NAME,
            f"this machine is behind {where}, and {first.member} sees it at {first.host}; its kind "
            "is not known, because that takes two members at different addresses",
        )
    if len({(each.host, each.port) for each in facts.seen}) == 1:
        cone = f"cone: this machine is behind {where}, which shows all members the same port"
        return good(NAME, f"{cone} of {first.host}, so that hole punching can work")
    shown = ", ".join(f"{each.host}:{each.port}" for each in facts.seen)
    return warning(
        NAME,
        f"symmetric: this machine is behind {where}, which shows each member another port "
        f"({shown}), so that hole punching works only with peers that let everybody in",
        fix="have ports opened, as the lines about port mapping and dial-back say, or use IPv6; a "
        "node runs without it, and others reach it through other members",
        code=OUTBOUND_ONLY,
    )


def _unknown(facts: NatFacts) -> Finding:
    if not facts.failed:
        said = "not known: the members that answered are on this machine or in your own network"
        return good(NAME, said)
    return warning(
        NAME,
        f"not known: no member told at which port it sees you ({'; '.join(facts.failed)})",
        fix="run this command again in a minute; members with an earlier version cannot tell it",
    )


def _is_double(facts: NatFacts, seen: str) -> bool:
    """Return whether a second NAT lies behind the router."""
    if facts.lan_host and ip_address(facts.lan_host) in CARRIERS:
        return False  # There is no router, and the carrier's NAT is the only one.
    return facts.router is not None and str(facts.router) != seen


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


async def nat_kind(visit: Visit, learned: Learned, tell: Tell) -> None:
    """Call members at other sites from one local port, and tell what they see."""
    own = own_addresses()
    seen, failed = list[Seen](), list[str]()
    with LocalPort() as source:
        held = list[Observation]()
        try:
            # One after another: the first connection makes the mapping, and stays open.
            for witness in visit.far:
                try:
                    held.append(await _observed(visit, witness, source))
                except P2PTrainError as exc:
                    failed.append(f"{label(witness.peer)}: {exc.what}")
                else:
                    address = held[-1].seen
                    seen.append(Seen(label(witness.peer), address.host, address.port))
        finally:
            for each in held:
                each.connection.close()
    opened = learned.mapping.standing.open_ports if learned.mapping else ()
    router = opened[0].address if opened else None
    tell(judge_nat(NatFacts(seen, failed, own.hosts, own.lan_host, router)))


async def _observed(visit: Visit, witness: Witness, source: LocalPort) -> Observation:
    dialling = DialHandle()
    work = partial(
        observe,
        visit.credentials,
        witness.endpoint,
        source,
        deadline_s=OBSERVE_S,
        encrypted=visit.run.manifest.encrypted,
        dialling=dialling,
    )
    return await in_thread(work, stop=dialling.give_up)
