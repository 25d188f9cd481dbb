"""Members that cannot connect to each other exchange requests through a forwarder, which they
need not trust."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from p2ptrain.errors import NotAuthorised, P2PTrainError, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.forwarding import AT_ONCE
from p2ptrain.peers.forwarded_messages import PAYLOAD_BYTES_MAX, ForwardedMessage, decode
from p2ptrain.peers.protocol_names import FORWARD_PROTOCOL
from tests.node.rig import ANN, PaperNetwork, Rig, heartbeat, rig

P = "/p2ptrain/ledger/1"


@dataclass
class Cable(PaperNetwork):
    """A network whose requests reach the handlers of other rigs. As in the real one, a handler's
    error arrives as PeerUnreachable. `sent` lists the protocols of all requests, in order."""

    me: PeerId = ANN.peer
    nodes: dict[PeerId, Rig] = field(default_factory=dict)
    sent: list[tuple[PeerId, str]] = field(default_factory=list)

    async def request(
        self, peer: PeerId, protocol: str, payload: bytes, *, deadline_s: float, bytes_max: int
    ) -> bytes:
        self.sent.append((peer, protocol))
        if peer not in self.peers:
            raise PeerUnreachable("no answer", peer=peer)
        network = self.nodes[peer].context.network
        assert isinstance(network, Cable)
        try:
            reply = await network.handlers[protocol](self.me, payload)
        except P2PTrainError as exc:
            raise PeerUnreachable(exc.what, peer=peer, code="PEER-FAILED") from exc
        if len(reply) > bytes_max:
            raise RemoteProtocolError("the reply is too long", peer=peer)
        return reply


def network_of(r: Rig) -> Cable:
    assert isinstance(r.context.network, Cable)
    return r.context.network


@asynccontextmanager
async def three(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig, Rig, list[tuple[PeerId, bytes]]]]:
    """Yield a sender, a forwarder and a receiver of one run, and the requests that the receiver
    has handled. The sender and the receiver are connected to the forwarder only."""
    async with AsyncExitStack() as stack:
        rigs = [
            await stack.enter_async_context(rig(tmp_path / name, welcoming=True))
            for name in ("sender", "forwarder", "receiver")
        ]
        sender, forwarder, receiver = rigs
        names = [each.context.me for each in rigs]
        for each in rigs:
            each.surround(run=sender.run, network=Cable(me=each.context.me))
            each.set_chain(since=dict.fromkeys(names, 0))
            network_of(each).nodes.update(zip(names, rigs, strict=True))
            network_of(each).peers.update(names if each is forwarder else names[1:2])
            forwarding.answer_forwarded(each.context)
        for each in rigs:
            for other in rigs:
                incarnation = other.context.identities.incarnation
                beat = heartbeat(sender.run.id, incarnation=incarnation)
                each.context.peers.table.note_heartbeat(other.context.me, beat, each.context.now())
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


async def test_protocols_that_were_not_registered_are_not_forwarded(tmp_path: Path) -> None:
    async with three(tmp_path) as (sender, _forwarder, receiver, _handled):
        del receiver.context.peers.forwarding.handlers[P]
        with pytest.raises(PeerUnreachable) as caught:
            await ask(sender, receiver)
        assert "cannot be forwarded" in caught.value.evidence[0]
