"""Members connect back to a node that asks whether it can be reached, and the node judges from
their answers and from the connections that arrive."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import PROOF, Credentials, Endpoint, Listener
from p2ptrain.encoding import pack
from p2ptrain.errors import (
    NetworkUnreachable,
    NotAuthorised,
    PeerUnreachable,
    RemoteProtocolError,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.own_addresses import OwnAddresses
from p2ptrain.node.gossip.reach_answers import (
    AT_ONCE_MAX,
    PEER_AGAIN_S,
    answer_reach_questions,
)
from p2ptrain.node.gossip.reach_task import askable, judge, own_place, watch_reach
from p2ptrain.node.gossip.reachability import in_words, judged_reach
from p2ptrain.node.state.port_mappings import OwnPorts, RouterMapping
from p2ptrain.peers.protocol_names import REACH_PROTOCOL
from p2ptrain.peers.reach_evidence import PortsReached
from p2ptrain.peers.reach_messages import (
    DialOutcome,
    ReachAnswer,
    ReachQuestion,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from p2ptrain.peers.reach_questions import UNREACHED_EVERY_S
from p2ptrain.portmap import OpenPort, Standing
from p2ptrain.portmap.values import Protocol
from tests.node.rig import ANN, BOB, CAI, Rig, heartbeat, opening, rig, settled, somebody

YES, NO, UNTRIED = DialOutcome.REACHED, DialOutcome.SILENT, DialOutcome.UNTRIED
HOME = "198.51.100.7"
SITES = {ANN.peer: "203.0.113.1", BOB.peer: "203.0.113.2", CAI.peer: "203.0.113.3"}
LAN = OwnAddresses(("192.168.1.5",), ("192.168.1.0/24",), "192.168.1.5")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# ── the member that is asked ─────────────────────────────────────────────────────────────────────


@contextmanager
def asking(identity: Identity = ANN) -> Iterator[tuple[Listener, ReachQuestion]]:
    """Open the data plane of a node that asks, and yield its question."""
    credentials = Credentials.create(identity)
    with Listener(credentials, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        listener.handle(PROOF, lambda connection, hello: None)
        port = listener.address[1]
        yield listener, ReachQuestion(4201, port, credentials.certificate_der)


async def answered(r: Rig, question: ReachQuestion, peer: PeerId = ANN.peer) -> ReachAnswer:
    reply = await r.network.handlers[REACH_PROTOCOL](peer, encode_question(question))
    return decode_answer(reply)


async def test_member_connects_back_to_both_ports_of_the_address_that_it_sees(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.network.hosts[ANN.peer] = "127.0.0.1"
        answer_reach_questions(r.context)
        with asking() as (listener, question):
            listener.trust_certificate(r.context.plane.credentials.certificate_der)
            assert await answered(r, question) == ReachAnswer("127.0.0.1", YES, YES)
            await settled(lambda: listener.statistics().served == 1)
            assert list(listener.arrivals()) == ["127.0.0.1"]
        assert r.network.proved == [(ANN.peer, "127.0.0.1", 4201)]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("NET-REFUSED", DialOutcome.REFUSED),
        ("NET-TIMEOUT", DialOutcome.SILENT),
        ("NET-WRONG-ID", DialOutcome.ELSE),
    ],
)
async def test_member_reports_how_its_dials_ended(
    tmp_path: Path, code: str, outcome: DialOutcome
) -> None:
    async with rig(tmp_path) as r:
        r.network.hosts[ANN.peer] = "127.0.0.1"
        r.network.cannot_prove = NetworkUnreachable("no", code=code)
        answer_reach_questions(r.context)
        with asking() as (_, question):
            pass
        refused = DialOutcome.REFUSED
        assert await answered(r, question) == ReachAnswer("127.0.0.1", outcome, refused)


async def test_third_party_at_the_address_is_no_evidence(tmp_path: Path) -> None:
    """Bob's data plane listens at the port that Ann names."""
    async with rig(tmp_path) as r:
        r.network.hosts[ANN.peer] = "127.0.0.1"
        answer_reach_questions(r.context)
        with asking(BOB) as (_, theirs):
            own = Credentials.create(ANN).certificate_der
            lie = ReachQuestion(4201, theirs.data_port, own)
            assert (await answered(r, lie)).data is DialOutcome.ELSE


async def test_certificate_of_another_peer_is_no_evidence(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.hosts[ANN.peer] = "127.0.0.1"
        answer_reach_questions(r.context)
        with asking(BOB) as (listener, question):
            assert (await answered(r, question)).data is DialOutcome.ELSE
            assert listener.statistics().accepted == 0


async def test_question_that_names_a_third_address_is_refused_without_a_packet(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.network.hosts[ANN.peer] = HOME
        answer_reach_questions(r.context)
        with asking() as (listener, question):
            wire = {
                "control": question.control_port,
                "data": question.data_port,
                "certificate": question.certificate_der,
            }
            for extra in ({"host": "127.0.0.1"}, {"data": 0}, {"control": 0}, {"data": 1 << 17}):
                with pytest.raises(RemoteProtocolError):
                    await r.network.handlers[REACH_PROTOCOL](ANN.peer, pack(wire | extra))
            assert listener.statistics().accepted == 0
        assert r.network.proved == []


async def test_outsider_and_peer_without_address_are_refused_without_a_packet(
    tmp_path: Path,
) -> None:
    """In an open run, everybody is admitted, but only members are answered."""
    stranger = somebody(900)
    async with rig(tmp_path, admission="open") as r:
        r.decide(opening(r.context.ledger.snapshot, learners=(ANN.peer,)))
        r.network.hosts[stranger.peer] = "127.0.0.1"
        answer_reach_questions(r.context)
        for who in (stranger, ANN):
            with asking(who) as (listener, question), pytest.raises(NotAuthorised):
                await answered(r, question, who.peer)
            assert listener.statistics().accepted == 0
        assert r.network.proved == []


async def test_flood_of_questions_is_answered_once_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    async with rig(tmp_path, clock=clock) as r:
        r.network.hosts |= {ANN.peer: "127.0.0.1", BOB.peer: "127.0.0.1"}
        answer_reach_questions(r.context)
        with asking() as (listener, question):
            await answered(r, question)
            for _ in range(20):
                with pytest.raises(NotAuthorised, match="once a minute"):
                    await answered(r, question)
            assert len(r.network.proved) == 1
            assert (await answered(r, question, BOB.peer)).data is DialOutcome.ELSE
            clock.now += PEER_AGAIN_S
            await answered(r, question)
            await settled(lambda: listener.statistics().accepted == 2)


async def test_member_answers_few_questions_at_a_time(tmp_path: Path) -> None:
    """The dials of the first askers hang, so the last asker is told that nobody tried."""
    askers = [somebody(910 + number) for number in range(AT_ONCE_MAX + 1)]
    async with rig(tmp_path, allowed=[each.peer for each in askers]) as r:
        answer_reach_questions(r.context, dial_s=20.0)
        found = list[ReachAnswer]()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            async with trio.open_nursery() as nursery:

                async def ask(who: Identity) -> None:
                    r.network.hosts[who.peer] = "127.0.0.1"
                    own = Credentials.create(who).certificate_der
                    found.append(await answered(r, ReachQuestion(1, port, own), who.peer))

                for who in askers[:-1]:
                    nursery.start_soon(ask, who)
                await settled(lambda: len(r.network.proved) == AT_ONCE_MAX)
                await ask(askers[-1])
                await ask(askers[-1])  # A peer that nobody tried for may ask again at once.
                assert found == [ReachAnswer("127.0.0.1", UNTRIED, UNTRIED)] * 2
                nursery.cancel_scope.cancel()


# ── the node that asks ───────────────────────────────────────────────────────────────────────────


def joined(r: Rig, *members: PeerId) -> None:
    """Make `members` members of the run that are connected from their sites."""
    r.decide(opening(r.context.ledger.snapshot, learners=members))
    r.network.peers = set(members)
    r.network.sites |= {peer: SITES[peer] for peer in members}


def introduce(r: Rig, *members: Identity) -> None:
    """Let heartbeats bring the members' certificates."""
    for each in members:
        certificate = Credentials.create(each).certificate_der
        endpoint = Endpoint(each.peer, SITES[each.peer], 4202, certificate)
        beat = heartbeat(r.run.id, endpoint=pack(endpoint.to_wire()))
        r.context.peers.table.note_heartbeat(each.peer, beat, r.context.now())


async def test_only_members_at_other_sites_are_asked(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        joined(r, ANN.peer, BOB.peer)
        r.network.peers.add(CAI.peer)
        r.network.sites[CAI.peer] = SITES[CAI.peer]
        r.network.sites[BOB.peer] = "192.168.1.9"
        assert [each.peer for each in askable(r.context, LAN)] == [ANN.peer]
        r.context.own_heartbeat.reach.external_host = SITES[ANN.peer]
        assert askable(r.context, LAN) == [], "a member behind the same router is near"


class Members:
    """Answers the questions of the node under test."""

    def __init__(self, r: Rig, outcomes: dict[PeerId, DialOutcome]) -> None:
        self.outcomes = outcomes
        self.asked: list[PeerId] = []
        r.network.answer = self.answer

    async def answer(self, peer: PeerId, payload: bytes) -> bytes:
        self.asked.append(peer)
        question = decode_question(payload)
        assert (question.control_port, question.data_port > 0) == (4001, True)
        outcome = self.outcomes[peer]
        return encode_answer(ReachAnswer(HOME, outcome, outcome))


async def test_node_asks_at_the_start_and_again_and_tells_the_verdict(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with rig(tmp_path, clock=clock) as r, trio.open_nursery() as nursery:
        joined(r, ANN.peer, BOB.peer, CAI.peer)
        introduce(r, ANN, BOB, CAI)
        members = Members(r, dict.fromkeys(SITES, NO))
        nursery.start_soon(watch_reach, r.context, 0.01)
        await settled(lambda: in_words(r.context).startswith("closed: "))
        assert judged_reach(r.context) == (False, False)
        await settled(lambda: len(members.asked) == 3)
        members.outcomes = dict.fromkeys(SITES, YES)
        clock.now += UNREACHED_EVERY_S
        await settled(lambda: len(members.asked) == 6)
        await settled(lambda: in_words(r.context).startswith("open: "))
        assert judged_reach(r.context) == (True, True)
        told = [(each["verdict"], each["host"]) for each in r.said("reach")]
        assert [told[0], told[-1]] == [("closed", HOME), ("open", HOME)]
        assert len(r.said("reach-answer")) == 6
        nursery.cancel_scope.cancel()


async def test_members_try_the_ports_that_the_router_opened(tmp_path: Path) -> None:
    clock = Clock()
    async with rig(tmp_path, clock=clock) as r, trio.open_nursery() as nursery:
        joined(r, ANN.peer, BOB.peer)
        introduce(r, ANN, BOB)
        data_port, tried = r.context.plane.listener.address[1], set[tuple[int, int]]()
        opened = tuple(
            OpenPort(own, ip_address(HOME), port, Protocol.PCP, 1800.0)
            for own, port in ((4001, 50001), (data_port, 50002))
        )
        ports = OwnPorts(4001, data_port)
        standing = Standing((4001, data_port), opened)
        r.context.port_mappings.routers[4] = RouterMapping(ports, standing)

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            question = decode_question(payload)
            tried.add((question.control_port, question.data_port))
            return encode_answer(ReachAnswer(HOME, YES, YES))

        r.network.answer = answer
        nursery.start_soon(watch_reach, r.context, 0.01)
        words = "mapped: your router opened TCP 50001 and 50002 by PCP, renewed every 30 min"
        await settled(lambda: in_words(r.context) == words)
        assert tried == {(50001, 50002)}
        assert r.context.port_mappings.observed == {ip_address(HOME)}
        nursery.cancel_scope.cancel()


async def test_member_that_does_not_answer_is_journaled_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async def refuse(peer: PeerId, payload: bytes) -> bytes:
        raise PeerUnreachable("it does not know this protocol", peer=peer)

    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        joined(r, ANN.peer)
        introduce(r, ANN)
        r.network.answer = refuse
        nursery.start_soon(watch_reach, r.context, 0.01)
        await settled(lambda: bool(r.said("reach-not-answered")))
        assert judged_reach(r.context) == (False, True)
        nursery.cancel_scope.cancel()


async def test_member_that_lacks_our_certificate_is_not_asked(tmp_path: Path) -> None:
    """Our data plane would refuse its connection, so it would report a port as not reached."""
    protocols = list[bytes]()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        protocols.append(payload)
        raise PeerUnreachable("not now", peer=peer)

    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        joined(r, ANN.peer)
        r.network.answer = answer
        nursery.start_soon(watch_reach, r.context, 0.01)
        await settled(lambda: bool(r.said("not-introduced")))
        nursery.cancel_scope.cancel()
    assert not any(b"control" in each for each in protocols)


async def test_connection_from_the_same_lan_is_no_evidence(tmp_path: Path) -> None:
    clock = Clock()
    async with rig(tmp_path, clock=clock) as r:
        place = own_place(r.context, LAN)
        assert place is not None
        watch = r.context.own_heartbeat.reach
        r.network.came = {"192.168.1.9": clock.now, "127.0.0.1": clock.now}
        judge(r.context, LAN, place)
        assert watch.ports == PortsReached()
        r.network.came["203.0.113.9"] = clock.now
        judge(r.context, LAN, place)
        assert watch.ports == PortsReached(control=True)


async def test_node_that_does_not_listen_does_not_ask(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = []
        assert own_place(r.context, LAN) is None
