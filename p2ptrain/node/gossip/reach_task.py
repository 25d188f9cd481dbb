"""Find out whether other sites can connect to this node, by asking members and by watching which
connections arrive.

Two or three members at different sites are asked at the start, every ten minutes, and when this
node's address changes; more often while they do not reach it (`peers/reach_watch`). Members behind
the same router are not asked, because they reach this node even if nobody else does.
"""

from __future__ import annotations

import time
from ipaddress import ip_address

import trio

from p2ptrain.address_group import is_elsewhere
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.addresses import parse
from p2ptrain.node.gossip.endpoint_exchange import introduced
from p2ptrain.node.gossip.mapped_ports import OutsidePorts, outside_ports
from p2ptrain.node.gossip.own_addresses import OwnAddresses, own_addresses
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import REACH_PROTOCOL
from p2ptrain.peers.reach_messages import (
    ANSWER_BYTES_MAX,
    ReachAnswer,
    ReachQuestion,
    decode_answer,
    encode_question,
)
from p2ptrain.peers.reach_questions import Askable
from p2ptrain.peers.reach_verdict import OtherWays, OwnPlace
from p2ptrain.peers.reach_watch import about_now

LOOK_S = 2.0
"""Interval at which this node checks its own addresses, and whether to ask members."""

ANSWER_S = 30.0
"""Deadline of a question in seconds. A member dials for 5 s, but on a busy machine its answer comes
later, and it answers the next question only after a minute. Another member is asked sooner."""


async def watch_reach(context: Context, look_s: float = LOOK_S) -> None:
    """Ask members, update the verdict and journal its changes, until cancelled."""
    watch = context.own_heartbeat.reach
    async with trio.open_nursery() as nursery:
        while True:
            own, now = own_addresses(), context.now()
            members = askable(context, own)
            sites = {each.peer: each for each in members}
            place = own_place(context, own)
            if place is not None:
                if judge(context, own, place):
                    _tell(context)
                ports, waits = outside_ports(context, place), asks_router(context)
                for peer in watch.choose(members, now, context.draw, asks_router=waits):
                    nursery.start_soon(_ask, context, sites[peer], place, ports)
            await trio.sleep(look_s)


def askable(context: Context, own: OwnAddresses) -> list[Askable]:
    """Return the connected members at other sites. Only members are asked: they can lie too, but
    nobody becomes several members just by making keys."""
    is_member, network = context.ledger.snapshot.is_member, context.network
    members = [peer for peer in network.connected() if is_member(peer) and peer != context.me]
    found = [Askable(peer, network.site_of(peer)) for peer in members]
    return [each for each in found if _is_elsewhere(context, each.site, own)]


def own_place(context: Context, own: OwnAddresses) -> OwnPlace | None:
    """Return this node's address in its local network and its two ports; None if its control plane
    does not listen."""
    listening = [parse(address).port for address in context.network.addresses()]
    if not listening:
        return None
    host = own.lan_host or own.ipv6_host or "this machine"
    announced = context.config.data_announce
    data_port = announced[1] if announced else context.plane.listener.address[1]
    return OwnPlace(host, listening[0], data_port)


def asks_router(context: Context) -> bool:
    """Return whether this node has asked its router to open ports, and waits for the answer."""
    mapping = context.port_mappings.routers.get(4)
    return mapping is not None and mapping.standing is not None and mapping.standing.asking


def judge(context: Context, own: OwnAddresses, place: OwnPlace) -> bool:
    """Update the verdict, and return whether it changed. Only connections from other sites count
    as arrivals."""
    now = context.now()
    # The listener's threads use another clock than this task.
    ahead_s = now - time.monotonic()
    data = {site: at + ahead_s for site, at in context.plane.listener.arrivals().items()}
    control = context.network.arrivals()
    return context.own_heartbeat.reach.judge(
        place,
        {site: at for site, at in control.items() if _is_elsewhere(context, site, own)},
        {site: at for site, at in data.items() if _is_elsewhere(context, site, own)},
        now,
        outside_ports(context, place).opened,
        other_ways(context),
    )


def other_ways(context: Context) -> OtherWays:
    """Return how many other members are connected by other ways than a plain dial."""
    now, peers = context.now(), context.peers
    members = [it for it in context.ledger.snapshot.members if it != context.me]
    punched = peers.punching.reached(now).intersection(members)
    relayed = peers.relaying.reached(now).intersection(members)
    # A member that needed a relay earlier may be reached by hole punching now.
    relayed -= {
        it
        for it in punched & relayed
        if peers.punching.reached_s[it] > peers.relaying.reached_s[it]
    }
    return OtherWays(len(punched - relayed), len(relayed), len(members))


async def ask(
    network: Network, peer: PeerId, question: ReachQuestion, *, deadline_s: float = ANSWER_S
) -> ReachAnswer:
    """Ask `peer`, which must be connected, to connect to the ports in `question`. Return its
    answer.

    Raises:
        PeerError: it does not answer within `deadline_s`, or it refuses: it answers members and
            listed peers only, once a minute.
        RemoteProtocolError: its answer is malformed.
    """
    reply = await network.request(
        peer,
        REACH_PROTOCOL,
        encode_question(question),
        deadline_s=deadline_s,
        bytes_max=ANSWER_BYTES_MAX,
    )
    return decode_answer(reply)


async def _ask(context: Context, asked: Askable, place: OwnPlace, ports: OutsidePorts) -> None:
    """Ask one member whether it reaches `ports`, and pass its answer to the watch."""
    peer, watch = asked.peer, context.own_heartbeat.reach
    if context.peers.table.endpoint(peer) is None and await introduced(context, peer) is None:
        # Our data plane would refuse the member's connection, and the answer would be wrong.
        watch.note_failure(peer)
        return
    certificate = context.plane.credentials.certificate_der
    question = ReachQuestion(ports.control, ports.data, certificate)
    about = about_now(place, ports.opened)
    try:
        answer = await ask(context.network, peer, question)
    except (PeerError, RemoteProtocolError) as exc:
        watch.note_failure(peer)
        context.peers.report_misbehaviour("reach-not-answered", peer, reason=exc.what)
        return
    watch.note_answer(asked, about, answer, context.now())
    context.port_mappings.note_observed(map(ip_address, watch.observed_hosts(context.now())))
    context.journal.write(
        "reach-answer",
        peer=peer,
        host=answer.host,
        control=str(answer.control),
        data=str(answer.data),
    )


def _is_elsewhere(context: Context, site: str, own: OwnAddresses) -> bool:
    external = context.own_heartbeat.reach.external_host
    return is_elsewhere(site, (*own.hosts, *([external] if external else [])), own.networks)


def _tell(context: Context) -> None:
    watch = context.own_heartbeat.reach
    context.journal.write(
        "reach",
        verdict=str(watch.verdict.reach),
        what=watch.verdict.sentence,
        control=watch.ports.control,
        data=watch.ports.data,
        host=watch.external_host,
    )
    context.changes.notify_all()
    context.own_heartbeat.send_now()
