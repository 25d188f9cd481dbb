"""Check whether members can connect to this machine, on the ports of a node with these settings.

For the time of the question, this check listens on both ports as a node does, and has the router
open them if it can. It serves nobody: the data port only proves who listens there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from p2ptrain.dataplane import PROOF, Listener
from p2ptrain.doctor.finding import Finding, Tell, good, warning
from p2ptrain.doctor.port_mapping import OUTBOUND_ONLY
from p2ptrain.doctor.ports import addresses_of
from p2ptrain.doctor.subject import Learned, OpenMapping
from p2ptrain.doctor.visit import Visit, Witness
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.names import label
from p2ptrain.net.addresses import parse
from p2ptrain.node.gossip.own_addresses import own_addresses
from p2ptrain.node.gossip.reach_task import ask
from p2ptrain.node.port_mapping.keep_mapped import nonce_of
from p2ptrain.node.state.threads import in_thread
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer, ReachQuestion
from p2ptrain.peers.reach_verdict import Reach
from p2ptrain.portmap import Interruption, Router, Standing, opened_ports
from p2ptrain.suggested_command import to_paste, usual_home

NAME = "dial-back"

ROUTER_S = 5.0
"""Deadline in seconds for opening the ports, by the protocol that has worked just now. Closing them
has the same one."""

WORDS = {
    DialOutcome.REACHED: "reached",
    DialOutcome.REFUSED: "refused",
    DialOutcome.SILENT: "silent",
    DialOutcome.ELSE: "another program answers",
    DialOutcome.UNTRIED: "not tried",
}


@dataclass(frozen=True, slots=True)
class DialBackFacts:
    """The answers of the members that were asked, by their names. `refused` has the errors of the
    others. `control_port` and `data_port` are the ports that they dialled."""

    answers: Mapping[str, ReachAnswer]
    refused: Mapping[str, str]
    control_port: int
    data_port: int
    lan_host: str = ""
    mapped_by: str = ""
    """The protocol by which the router opened the ports for this check; "" if it did not."""
    are_ports_chosen: bool = True
    """Whether the user chose both ports. Otherwise the system chooses others at each start."""
    is_open_run: bool = False
    home: Path = field(default_factory=usual_home)


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_dial_back(facts: DialBackFacts) -> Finding:
    """Judge both ports by the majority of the members that have tried."""
    tried = {
        name: each
        for name, each in facts.answers.items()
        if DialOutcome.UNTRIED not in (each.control, each.data)
    }
    if not tried:
        return _not_tried(facts)
    control = _is_reached([each.control for each in tried.values()])
    data = _is_reached([each.data for each in tried.values()])
    hosts = ", ".join(sorted({each.host for each in tried.values()}))
    where = f"TCP {facts.control_port} and {facts.data_port} of {hosts}"
    if control and data:
        reach = Reach.MAPPED if facts.mapped_by else Reach.OPEN
        by = f", which your router opened by {facts.mapped_by}" if facts.mapped_by else ""
        return good(NAME, f"{reach}: {_members(tried)} connected to both ports ({where}{by})")
    outcomes = _told(tried)
    if not control and not data:
        reach = Reach.BLOCKED if facts.mapped_by else Reach.CLOSED
        said = f"{reach}: members cannot connect to you at {where} ({outcomes})"
        return warning(NAME, said, fix=_fix(facts, hosts, "both"), code=OUTBOUND_ONLY)
    missing = "data" if control else "control"
    reached = "control" if control else "data"
    ports = f"members reach your {reached} port, but not your {missing} port"
    said = f"{Reach.HALF}: {ports} ({outcomes})"
    return warning(NAME, said, fix=_fix(facts, hosts, missing), code=OUTBOUND_ONLY)


def _is_reached(outcomes: list[DialOutcome]) -> bool:
    return 2 * outcomes.count(DialOutcome.REACHED) > len(outcomes)


def _members(tried: Mapping[str, ReachAnswer]) -> str:
    names = list(tried)
    return names[0] if len(names) == 1 else f"{len(names)} members"


def _told(tried: Mapping[str, ReachAnswer]) -> str:
    """Return the outcomes in words; only once if all members tell the same."""
    told = {
        name: f"control port {WORDS[each.control]}, data port {WORDS[each.data]}"
        for name, each in tried.items()
    }
    if len(set(told.values())) == 1:
        return f"{_members(tried)} tried: {next(iter(told.values()))}"
    return "; ".join(f"{name}: {words}" for name, words in told.items())


def _not_tried(facts: DialBackFacts) -> Finding:
    if facts.is_open_run and facts.refused:
        return warning(
            NAME,
            "not tried: in an open run, members try this only for peers that take part already",
            fix=f"start the node; a minute later, {to_paste(facts.home, 'status')} shows whether "
            "others reach it",
        )
    if facts.refused:
        why = "; ".join(f"{name}: {what}" for name, what in facts.refused.items())
        said = f"no member tried to connect to you ({why})"
        return warning(NAME, said, fix="run this command again in a minute")
    if facts.answers:
        said = "no member tried to connect to you, because all were busy"
        return warning(NAME, said, fix="run this command again in a minute")
    return good(
        NAME, "not tried: the members that answered are on this machine or in your own network"
    )


def _fix(facts: DialBackFacts, hosts: str, which: str) -> str:
    numbers = {
        "both": f"{facts.control_port} and {facts.data_port}",
        "control": str(facts.control_port),
        "data": str(facts.data_port),
    }[which]
    if facts.mapped_by:
        return (
            "your router opened the ports, so your provider blocks connections from outside: ask "
            "it for a public IPv4 address, or use IPv6; a node runs without it"
        )
    if facts.lan_host == hosts:
        fix = f"open TCP {numbers} in this machine's firewall, or in that of your provider"
    elif facts.are_ports_chosen:
        fix = f"forward TCP {numbers} to {facts.lan_host} in your router's settings"
    else:
        fix = (
            "choose two ports, such as --listen /ip4/0.0.0.0/tcp/4201 --data-listen 0.0.0.0:4202, "
            f"and forward them to {facts.lan_host} in your router's settings"
        )
    return f"{fix}; without it, others reach a node by hole punching or through other members"


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


async def dial_back(visit: Visit, learned: Learned, tell: Tell) -> None:
    """Ask members at other sites to connect to both ports, and tell what they say."""
    if not learned.are_ports_free or not visit.network.addresses():
        tell(
            warning(
                NAME,
                "not tried: a node could not listen on both ports",
                fix="repair the lines about the ports first",
            )
        )
        return
    tell(judge_dial_back(await _facts(visit, learned)))


async def _facts(visit: Visit, learned: Learned) -> DialBackFacts:
    config, control_port = visit.config, parse(visit.network.addresses()[0]).port
    with _listening(visit) as listener:
        data_port = listener.address[1]
        async with _mapped(visit, learned.mapping, control_port, data_port) as outside:
            answers, refused = await _asked(visit, *(outside or (control_port, data_port)))
    by = str(learned.mapping.standing.open_ports[0].protocol) if learned.mapping else ""
    chosen = config.data_port != 0 and all(parse(each).port for each in addresses_of(config))
    return DialBackFacts(
        answers=answers,
        refused=refused,
        control_port=(outside or (control_port, data_port))[0],
        data_port=(outside or (control_port, data_port))[1],
        lan_host=own_addresses().lan_host,
        mapped_by=by if outside else "",
        are_ports_chosen=chosen,
        is_open_run=visit.run.manifest.admission == "open",
        home=visit.home,
    )


def _listening(visit: Visit) -> Listener:
    """Return a data plane that proves who we are to the witnesses, and does nothing else.

    Raises ConfigError: the port was taken just now."""
    config, witnesses = visit.config, {each.peer for each in visit.witnesses}
    listener = Listener(
        visit.credentials,
        config.data_host,
        config.data_port,
        allowed=lambda peer: peer in witnesses,
        encrypted=visit.run.manifest.encrypted,
    )
    for each in visit.witnesses:
        listener.trust_certificate(each.endpoint.certificate_der)
    listener.handle(PROOF, lambda connection, hello: None)
    return listener


@asynccontextmanager
async def _mapped(
    visit: Visit, mapping: OpenMapping | None, control_port: int, data_port: int
) -> AsyncIterator[tuple[int, int] | None]:
    """Have the router open both ports while the block lasts, if it did before. Yield the external
    ports; None if they are not open."""
    if mapping is None:
        yield None
        return
    nonces = {port: nonce_of(visit.identity, port) for port in (control_port, data_port)}
    protocols = (mapping.standing.open_ports[0].protocol,)
    stack, standing = ExitStack(), None
    with Interruption() as interruption:
        ports = opened_ports(Router(mapping.gateway), nonces, interruption, protocols)
        try:
            with trio.move_on_after(ROUTER_S):
                open_them = partial(stack.enter_context, ports)
                standing = await in_thread(open_them, stop=interruption.stop)
            yield None if standing is None else _external(standing, control_port, data_port)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(stack.close)


def _external(standing: Standing, control_port: int, data_port: int) -> tuple[int, int] | None:
    opened = {each.internal_port: each.port for each in standing.open_ports}
    if control_port not in opened or data_port not in opened:
        return None
    return opened[control_port], opened[data_port]


async def _asked(
    visit: Visit, control_port: int, data_port: int
) -> tuple[dict[str, ReachAnswer], dict[str, str]]:
    """Ask all witnesses at other sites at once. Return their answers, and the errors of those that
    did not answer."""
    question = ReachQuestion(control_port, data_port, visit.credentials.certificate_der)
    answers, refused = dict[str, ReachAnswer](), dict[str, str]()

    async def ask_one(witness: Witness) -> None:
        try:
            answers[label(witness.peer)] = await ask(visit.network, witness.peer, question)
        except (PeerError, RemoteProtocolError) as exc:
            refused[label(witness.peer)] = exc.what

    async with trio.open_nursery() as nursery:
        for witness in visit.far:
            nursery.start_soon(ask_one, witness)
    return answers, refused
