"""A visitor, which is admitted by name and is not a member, gets chunks from members that it cannot
dial. It gets nothing else, and a stranger does not get even that.

The three rigs: the visitor (or stranger), a member in the middle that can be dialled, and a member
behind a NAT.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import ExternalAddress
from p2ptrain.dataplane.punch_messages import PunchOffer, encode
from p2ptrain.errors import P2PTrainError, PeerUnreachable
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.outer_state.fetch import fetch_loose
from p2ptrain.node.punching.agreeing import VISITORS
from p2ptrain.node.state.forwarding import VISITORS_AT_ONCE
from p2ptrain.node.state.punching import CHUNKS
from p2ptrain.peers.protocol_names import (
    ENDPOINT_BYTES_MAX,
    ENDPOINT_PROTOCOL,
    LEDGER_PROTOCOL,
    PUNCH_PROTOCOL,
)
from tests.node.cable import invite, network_of, three_rigs
from tests.node.punching.test_punched_connections import HERE, Pair, offer, pair
from tests.node.relaying.test_relayed_reduce import neighbours
from tests.node.rig import Rig, settled

DEADLINE_S = 60.0


async def test_visitor_fetches_from_a_member_behind_a_nat(tmp_path: Path) -> None:
    async with pair(tmp_path) as p:
        invite(p.ann, p.middle, p.bob)
        digest = p.bob.context.store.put_chunk(b"only Bob has this")
        with trio.fail_after(DEADLINE_S):
            report = await fetch_loose(p.ann.context, [digest])
        assert report.bytes_by_peer == {p.bob.context.me: 17}
        assert [said["about"] for said in p.ann.said("punched")] == [CHUNKS]


async def test_visitor_fetches_through_a_relay(tmp_path: Path) -> None:
    async with neighbours(tmp_path) as found:
        ann, bob = found.ends
        invite(ann, bob, *found.relays)
        digest = bob.context.store.put_chunk(b"only Bob has this")
        with trio.fail_after(DEADLINE_S):
            report = await fetch_loose(ann.context, [digest])
        assert report.bytes_by_peer == {bob.context.me: 17}
        assert [said["peer"] for said in ann.said("relayed")] == [bob.context.me]


async def test_stranger_does_not_fetch_from_a_member_behind_a_nat(tmp_path: Path) -> None:
    """The stranger takes itself for a visitor. No member sends anything for it."""
    async with neighbours(tmp_path) as found:
        ann, bob = found.ends
        for each in (ann, bob, *found.relays):
            each.set_chain(since={it.context.me: 0 for it in (bob, *found.relays)})
        before = [len(network_of(it).sent) for it in (bob, *found.relays)]
        digest = bob.context.store.put_chunk(b"only Bob has this")
        with trio.move_on_after(3.0) as limit:
            await fetch_loose(ann.context, [digest])
        assert limit.cancelled_caught
        assert [len(network_of(it).sent) for it in (bob, *found.relays)] == before
        assert bob.context.plane.listener.statistics().accepted == 0
        assert len(bob.context.peers.punching.sessions) == 0
        assert not any(it.said("relay-joined") for it in found.relays)


async def offer_about(p: Pair, about: str, *, to: Rig, from_: Rig) -> None:
    message = PunchOffer(bytes(16), about, 0, (ExternalAddress(HERE, 4000),))
    await forwarding.request(
        from_.context,
        to.context.me,
        PUNCH_PROTOCOL,
        encode(message),
        deadline_s=5.0,
        bytes_max=0,
    )


async def test_visitor_punches_only_for_chunks_and_is_not_asked_to_punch(tmp_path: Path) -> None:
    async with pair(tmp_path) as p:
        invite(p.ann, p.middle, p.bob)
        about = f"reduce {p.ann.run.id} 0 0"
        with pytest.raises(PeerUnreachable) as caught:
            await offer_about(p, about, from_=p.ann, to=p.bob)
        assert "only to fetch chunks" in caught.value.evidence[0]
        with pytest.raises(PeerUnreachable) as caught:
            await offer_about(p, CHUNKS, from_=p.bob, to=p.ann)
        assert "only members are asked" in caught.value.evidence[0]
        assert p.observed() == 0
        assert [len(end.context.peers.punching.sessions) for end in p.ends] == [0, 0]


async def test_visitors_share_one_limit_of_messages_about_punching(tmp_path: Path) -> None:
    """Time stands still for the limit, and other visitors have used up their part."""
    async with pair(tmp_path) as p:
        invite(p.ann, p.middle, p.bob)
        limit, now = p.bob.context.peers.punching.visitor_messages, p.bob.context.now()
        for number in range(1000):
            limit.consume(f"visitor {number % 9}", 1, now)
        limit.note("all that is left", 1000, now)
        with pytest.raises(PeerUnreachable) as caught:
            await offer(p, HERE)
        assert "few messages per second" in caught.value.evidence[0]
        assert p.observed() == 0


async def test_member_cannot_use_up_our_observed_ports(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as p:
        observed, now = p.bob.context.peers.punching.observed, p.bob.context.now()
        for peer in (VISITORS, "another member", p.ann.context.me):
            while observed.consume(peer, 1, now):
                pass
        await offer(p, HERE)
        await settled(lambda: p.bob.said("punch-failed"))
        assert "too many ports for you" in str(p.bob.said("punch-failed")[0]["reason"])
        assert p.observed() == 0


# ── forwarding ───────────────────────────────────────────────────────────────────────────────────


async def ask(sender: Rig, receiver: Rig, protocol: str, payload: bytes = b"x") -> bytes:
    return await forwarding.request(
        sender.context, receiver.context.me, protocol, payload, deadline_s=5.0, bytes_max=100
    )


def answering(*rigs: Rig) -> None:
    async def answer(peer: object, payload: bytes) -> bytes:
        return b"re: " + payload

    for each in rigs:
        for protocol in (LEDGER_PROTOCOL, ENDPOINT_PROTOCOL):
            forwarding.handle(each.context, protocol, answer, bytes_max=1000)


async def test_few_protocols_are_passed_on_between_a_visitor_and_a_member(tmp_path: Path) -> None:
    async with three_rigs(tmp_path) as (visitor, middle, member):
        answering(visitor, middle, member)
        invite(visitor, middle, member)
        for one, other in ((visitor, member), (member, visitor)):
            assert await ask(one, other, ENDPOINT_PROTOCOL) == b"re: x"
            with pytest.raises(P2PTrainError):
                await ask(one, other, LEDGER_PROTOCOL)
        assert middle.context.peers.forwarding.passed_on == 2
        for one, other in ((visitor, member), (member, visitor)):
            with pytest.raises(PeerUnreachable) as caught:
                await ask(one, other, ENDPOINT_PROTOCOL, bytes(ENDPOINT_BYTES_MAX + 1))
            assert "too long" in caught.value.evidence[0]
        assert middle.context.peers.forwarding.passed_on == 2


async def test_receiver_does_not_answer_a_visitor_that_it_does_not_know(tmp_path: Path) -> None:
    """Only the forwarder admits the sender by name."""
    async with three_rigs(tmp_path) as (visitor, middle, member):
        answering(visitor, middle, member)
        invite(visitor, middle, member)
        member.context.admission.also_named.clear()  # type: ignore[attr-defined]
        with pytest.raises(PeerUnreachable) as caught:
            await ask(visitor, member, ENDPOINT_PROTOCOL)
        assert "is not a member" in caught.value.evidence[0]


async def test_visitors_do_not_use_up_what_members_may_send(tmp_path: Path) -> None:
    """Time stands still for the forwarder, and flies for the others, which answer every request."""
    async with three_rigs(tmp_path) as (visitor, middle, member):
        middle.surround(clock=lambda: 5.0)
        for each in (visitor, member):
            each.surround(clock=count(5.0).__next__)
        for each in (visitor, middle, member):
            forwarding.answer_forwarded(each.context)
        answering(visitor, middle, member)
        invite(visitor, middle, member)
        for _ in range(VISITORS_AT_ONCE // 4):
            await ask(visitor, member, ENDPOINT_PROTOCOL)
            await ask(member, visitor, ENDPOINT_PROTOCOL)
        for one, other in ((visitor, member), (member, visitor)):
            with pytest.raises(PeerUnreachable, match="no member passed"):
                await ask(one, other, ENDPOINT_PROTOCOL)
        everybody = (visitor, middle, member)
        for each in everybody:
            each.set_chain(since={it.context.me: 0 for it in everybody})
        assert await ask(member, visitor, ENDPOINT_PROTOCOL) == b"re: x"
