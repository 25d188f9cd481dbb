"""Members that cannot connect to each other exchange requests through a forwarder, which they
need not trust."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import NotAuthorised, P2PTrainError, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.forwarding.forwarded_protocols import FORWARDED
from p2ptrain.node.state.forwarding import AT_ONCE, RARE_AT_ONCE, Passage
from p2ptrain.peers import protocol_names
from p2ptrain.peers.forwarded_messages import PAYLOAD_BYTES_MAX, ForwardedMessage, decode
from p2ptrain.peers.protocol_names import (
    CLAIM_PROTOCOL,
    ENDPOINT_PROTOCOL,
    FORWARD_PROTOCOL,
    INNER_PROTOCOL,
    PUNCH_PROTOCOL,
    REACH_PROTOCOL,
    RELAY_PROTOCOL,
    SKETCH_PROTOCOL,
    SUMS_PROTOCOL,
)
from tests.node.cable import network_of, three_rigs
from tests.node.rig import ANN, Rig

P = "/p2ptrain/ledger/1"


@asynccontextmanager
async def three(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig, Rig, list[tuple[PeerId, bytes]]]]:
    """Yield the rigs of `three_rigs`, and the requests that the receiver has handled."""
    async with three_rigs(tmp_path) as (sender, forwarder, receiver):
        handled: list[tuple[PeerId, bytes]] = []

        async def handler(peer: PeerId, payload: bytes) -> bytes:
            handled.append((peer, payload))
            return b"re: " + payload

        forwarding.handle(receiver.context, P, handler, bytes_max=1000)
        yield sender, forwarder, receiver, handled


async def ask(sender: Rig, receiver: Rig, payload: bytes = b"vote", bytes_max: int = 100) -> bytes:
    return await forwarding.request(
        sender.context, receiver.context.me, P, payload, deadline_s=5.0, bytes_max=bytes_max
    )


async def test_request_reaches_a_member_through_a_forwarder(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        assert await ask(sender, receiver) == b"re: vote"
        assert await ask(sender, receiver, b"again") == b"re: again"
        assert handled == [(sender.context.me, b"vote"), (sender.context.me, b"again")]
        middle, end = forwarder.context.me, receiver.context.me
        # Only the first request is also tried directly.
        assert network_of(sender).sent == [
            (end, P),
            (middle, FORWARD_PROTOCOL),
            (middle, FORWARD_PROTOCOL),
        ]
        assert forwarder.context.peers.forwarding.passed_on == 2


async def test_connected_peer_is_asked_directly_even_if_it_fails(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, _forwarder, receiver, handled):
        network_of(sender).peers.add(receiver.context.me)
        receiver_network = network_of(receiver)
        receiver_network.handlers[P] = receiver_network.handlers[FORWARD_PROTOCOL]
        with pytest.raises(PeerUnreachable):
            await ask(sender, receiver)
        assert network_of(sender).sent == [(receiver.context.me, P)]
        assert handled == []


async def test_repeated_request_is_handled_once(tmp_path: Path) -> None:
    """The forwarder stores a request and delivers it again."""
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        kept: list[bytes] = []
        network = network_of(receiver)
        real = network.handlers[FORWARD_PROTOCOL]

        async def keep(peer: PeerId, data: bytes) -> bytes:
            kept.append(data)
            return await real(peer, data)

        network.handlers[FORWARD_PROTOCOL] = keep
        await ask(sender, receiver)
        with pytest.raises(P2PTrainError, match="handled already"):
            await real(forwarder.context.me, kept[0])
        assert handled == [(sender.context.me, b"vote")]


@pytest.mark.parametrize("part", ["payload", "serial", "sender", "receiver_incarnation"])
async def test_altered_request_is_refused(tmp_path: Path, part: str) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        network = network_of(receiver)
        real = network.handlers[FORWARD_PROTOCOL]
        changes = {
            "payload": b"another vote",
            "serial": 7,
            "sender": forwarder.context.me,
            "receiver_incarnation": 1,
        }

        async def alter(peer: PeerId, data: bytes) -> bytes:
            changed = replace(decode(data), **{part: changes[part]})  # type: ignore[arg-type]
            return await real(peer, changed.encode())

        network.handlers[FORWARD_PROTOCOL] = alter
        with pytest.raises(PeerUnreachable, match="no member"):
            await ask(sender, receiver)
        assert handled == []


async def test_reply_that_the_forwarder_invents_is_not_believed(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, _handled):

        async def invent(peer: PeerId, data: bytes) -> bytes:
            reply = decode(data).reply(b"I agree")
            return reply.signed(forwarder.context.identity.sign).encode()

        network_of(forwarder).handlers[FORWARD_PROTOCOL] = invent
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "not genuine" in caught.value.evidence[0]


async def test_requests_are_passed_on_between_members_only(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        since = {each.context.me: 0 for each in (forwarder, receiver)}
        forwarder.set_chain(since=since)
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "between members only" in caught.value.evidence[0]
        forwarder.set_chain(since=since | {sender.context.me: 0})
        receiver.set_chain(since=since)
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "is not a member" in caught.value.evidence[0]
        assert handled == []


async def test_only_members_pass_requests_on(tmp_path: Path) -> None:
    """In an open run, strangers are admitted too."""
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        receiver.set_chain(since={each.context.me: 0 for each in (sender, receiver)})
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "passes the request on is not a member" in caught.value.evidence[0]
        assert forwarder.context.peers.forwarding.passed_on == 1
        assert handled == []


async def test_members_cannot_send_under_another_name(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, _handled):
        network = network_of(forwarder)
        real = network.handlers[FORWARD_PROTOCOL]

        async def as_another(peer: PeerId, data: bytes) -> bytes:
            return await real(receiver.context.me, data)

        network.handlers[FORWARD_PROTOCOL] = as_another
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "only for its sender" in caught.value.evidence[0]


async def test_rate_of_each_sender_is_limited(tmp_path: Path) -> None:
    """Time stands still: only the burst is passed on."""
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        forwarder.surround(clock=lambda: 5.0)
        forwarding.answer_forwarded(forwarder.context)
        for _ in range(AT_ONCE):
            await ask(sender, receiver)
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "only a few requests" in caught.value.evidence[0]
        assert len(handled) == AT_ONCE


async def test_long_messages_and_long_replies_are_not_forwarded(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, _forwarder, receiver, handled):
        with pytest.raises(PeerUnreachable, match="too long for forwarding"):
            await ask(sender, receiver, bytes(PAYLOAD_BYTES_MAX + 1))
        with pytest.raises(RemoteProtocolError, match="too long"):
            await ask(sender, receiver, b"12345", bytes_max=8)
        assert len(handled) == 1


async def test_request_that_is_too_long_for_its_protocol_is_refused(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, _forwarder, receiver, handled):
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver, bytes(1001))
        assert "too long" in caught.value.evidence[0]
        assert handled == []


async def test_invented_requests_do_not_use_up_the_senders_limit(tmp_path: Path) -> None:
    """A lying member invents requests in the sender's name, more than a receiver checks."""
    async with three(tmp_path) as (sender, forwarder, receiver, _handled):
        receiver.surround(clock=lambda: 5.0)
        forwarding.answer_forwarded(receiver.context)
        liar = ANN.peer
        members = (sender.context.me, forwarder.context.me, receiver.context.me, liar)
        receiver.set_chain(since=dict.fromkeys(members, 0))
        invented = ForwardedMessage(
            sender.run.id,
            sender.context.me,
            receiver.context.me,
            sender.context.identities.incarnation,
            receiver.context.identities.incarnation,
            serial=0,
            protocol=P,
            is_reply=False,
            payload=b"x",
            signature=bytes(64),
        )
        deliver = network_of(receiver).handlers[FORWARD_PROTOCOL]
        for _ in range(3 * AT_ONCE):
            with pytest.raises(NotAuthorised):
                await deliver(liar, invented.encode())
        assert await ask(sender, receiver) == b"re: vote"


async def exchange(sender: Rig, receiver: Rig, protocol: str, payload: bytes = b"x") -> bytes:
    return await forwarding.request(
        sender.context, receiver.context.me, protocol, payload, deadline_s=5.0, bytes_max=9
    )


async def test_members_pass_on_eight_protocols_and_no_others(tmp_path: Path) -> None:
    """A further protocol needs a reason; decisions 070 to 075 have those for these eight. The
    receiver would answer a question about its reach, but the forwarder does not pass it on."""
    names = {name: value for name, value in vars(protocol_names).items() if "PROTOCOL" in name}
    everyday = set(names.values()) - FORWARDED.keys()
    assert set(FORWARDED) == {
        P,
        ENDPOINT_PROTOCOL,
        PUNCH_PROTOCOL,
        RELAY_PROTOCOL,
        INNER_PROTOCOL,
        CLAIM_PROTOCOL,
        SKETCH_PROTOCOL,
        SUMS_PROTOCOL,
    }
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        for protocol in FORWARDED:
            network_of(sender).sent.clear()
            receiver.context.peers.forwarding.handlers[protocol] = (
                receiver.context.peers.forwarding.handlers[P]
            )
            assert await exchange(sender, receiver, protocol) == b"re: x"
            through = network_of(sender).sent[-1]
            assert through == (forwarder.context.me, FORWARD_PROTOCOL)
        assert len(handled) == len(FORWARDED)
        passed_on = forwarder.context.peers.forwarding.passed_on
        for protocol in everyday:
            with pytest.raises(NotAuthorised, match="of this protocol are not passed on"):
                await passes_on(sender, forwarder, receiver, protocol)
        assert forwarder.context.peers.forwarding.passed_on == passed_on
    assert REACH_PROTOCOL in everyday


async def passes_on(
    sender: Rig, forwarder: Rig, receiver: Rig, protocol: str, payload: bytes = b"x"
) -> bytes:
    """Let `forwarder` pass on a signed request that an ordinary sender would not make."""
    message = ForwardedMessage(
        sender.run.id,
        sender.context.me,
        receiver.context.me,
        sender.context.identities.incarnation,
        receiver.context.identities.incarnation,
        serial=100,
        protocol=protocol,
        is_reply=False,
        payload=payload,
    ).signed(sender.context.identity.sign)
    deliver = network_of(forwarder).handlers[FORWARD_PROTOCOL]
    return await deliver(sender.context.me, message.encode())


@pytest.mark.parametrize("protocol", sorted(FORWARDED.keys() - {P}))
async def test_forwarder_knows_the_size_of_each_protocol(tmp_path: Path, protocol: str) -> None:
    async with three_rigs(tmp_path) as (sender, forwarder, receiver):
        most = FORWARDED[protocol].request_bytes_max
        with pytest.raises(NotAuthorised, match="too long for its protocol"):
            await passes_on(sender, forwarder, receiver, protocol, bytes(most + 1))
        assert forwarder.context.peers.forwarding.passed_on == 0


async def test_rare_requests_do_not_use_up_what_votes_need(tmp_path: Path) -> None:
    now = [5.0]
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        handlers = receiver.context.peers.forwarding.handlers
        handlers[RELAY_PROTOCOL] = handlers[INNER_PROTOCOL] = handlers[P]
        forwarder.surround(clock=lambda: now[0])
        forwarding.answer_forwarded(forwarder.context)
        for number in range(RARE_AT_ONCE):
            await exchange(sender, receiver, (RELAY_PROTOCOL, INNER_PROTOCOL)[number % 2])
        now[0] += 1.0  # Two rare requests and eight others may follow.
        for _ in range(2):
            await exchange(sender, receiver, INNER_PROTOCOL)
        with pytest.raises(PeerUnreachable) as caught:
            await exchange(sender, receiver, RELAY_PROTOCOL)
        assert "only a few requests" in caught.value.evidence[0]
        for _ in range(6):
            await ask(sender, receiver)
        assert len(handled) == RARE_AT_ONCE + 8


async def test_protocols_that_were_not_registered_are_not_forwarded(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, _forwarder, receiver, _handled):
        del receiver.context.peers.forwarding.handlers[P]
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "cannot be forwarded" in caught.value.evidence[0]


# ── the address at which the forwarder sees the sender ───────────────────────────────────────────


@asynccontextmanager
async def stating(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig, Rig, list[Passage]]]:
    """Yield the rigs of `three_rigs`, and how forwarded requests of PUNCH_PROTOCOL have reached the
    receiver. The forwarder sees the sender at 203.0.113.7."""
    async with three_rigs(tmp_path) as (sender, forwarder, receiver):
        passages: list[Passage] = []

        async def direct(peer: PeerId, payload: bytes) -> bytes:
            raise AssertionError("the two are not connected")

        async def passed_on(peer: PeerId, payload: bytes, passage: Passage) -> bytes:
            passages.append(passage)
            return b""

        both = (PUNCH_PROTOCOL, direct, passed_on)
        forwarding.handle_both(receiver.context, *both, bytes_max=1000)
        network_of(forwarder).hosts[sender.context.me] = "203.0.113.7"
        yield sender, forwarder, receiver, passages


async def ask_to_punch(sender: Rig, receiver: Rig) -> bytes:
    return await forwarding.request(
        sender.context, receiver.context.me, PUNCH_PROTOCOL, b"x", deadline_s=5.0, bytes_max=9
    )


async def test_forwarder_states_where_it_sees_the_sender(tmp_path: Path) -> None:
    async with stating(tmp_path) as (sender, forwarder, receiver, passages):
        assert await ask_to_punch(sender, receiver) == b""
        assert passages == [Passage(forwarder.context.me, "203.0.113.7")]


async def test_sender_cannot_state_its_own_address(tmp_path: Path) -> None:
    """The sender adds a statement: to the forwarder, which replaces it, and to the receiver."""
    async with stating(tmp_path) as (sender, forwarder, receiver, passages):
        network, pass_on = network_of(forwarder), network_of(forwarder).handlers[FORWARD_PROTOCOL]
        kept: list[bytes] = []

        async def with_statement(peer: PeerId, data: bytes) -> bytes:
            stated = replace(decode(data), seen_at="198.51.100.1").encode()
            kept.append(stated)
            return await pass_on(peer, stated)

        network.handlers[FORWARD_PROTOCOL] = with_statement
        await ask_to_punch(sender, receiver)
        del network.hosts[sender.context.me]
        await ask_to_punch(sender, receiver)
        later = replace(decode(kept[0]), serial=7).signed(sender.context.identity.sign)
        deliver = network_of(receiver).handlers[FORWARD_PROTOCOL]
        await deliver(sender.context.me, later.encode())
        middle = forwarder.context.me
        assert passages == [
            Passage(middle, "203.0.113.7"),
            Passage(middle, ""),
            Passage(sender.context.me, ""),
        ]


async def test_other_requests_are_passed_on_unchanged(tmp_path: Path) -> None:
    """Earlier versions do not accept a message with a statement."""
    async with three(tmp_path) as (sender, forwarder, receiver, _handled):
        network_of(forwarder).hosts[sender.context.me] = "203.0.113.7"
        arrived: list[bytes] = []
        network = network_of(receiver)
        real = network.handlers[FORWARD_PROTOCOL]

        async def keep(peer: PeerId, data: bytes) -> bytes:
            arrived.append(data)
            return await real(peer, data)

        network.handlers[FORWARD_PROTOCOL] = keep
        await ask(sender, receiver)
        (data,) = arrived
        assert decode(data).seen_at == ""
        wire = unpack(data, bytes_max=1 << 16)
        assert isinstance(wire, dict)
        assert "seen_at" not in wire
        for host in ("example.org", "1.2.3.4%eth0", "::ffff:0:0:1:2:3:4:5:6", "127.1", 4, "0" * 99):
            with pytest.raises(RemoteProtocolError):
                decode(pack(wire | {"seen_at": host}))


async def test_unconnected_peer_is_not_dialled_if_time_matters(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, forwarder, receiver, handled):
        await forwarding.request(
            sender.context,
            receiver.context.me,
            P,
            b"now",
            deadline_s=5.0,
            bytes_max=9,
            may_connect=False,
        )
        assert network_of(sender).sent == [(forwarder.context.me, FORWARD_PROTOCOL)]
        assert handled == [(sender.context.me, b"now")]
