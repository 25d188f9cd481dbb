"""Two nodes exchange their data planes' addresses and certificates, so that they can connect
without waiting for heartbeats."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    RingInbox,
    RingKey,
    SecureSocket,
    dial,
)
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import PeerError, PeerTooSlow, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.opening import Opening
from p2ptrain.node.gossip.endpoint_exchange import answer_introductions, introduced
from p2ptrain.node.reduce.edge import dial_persistently
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.timing import USUAL
from p2ptrain.peers.protocol_names import ENDPOINT_PROTOCOL
from tests.node.rig import ANN, BOB, heartbeat, rig, settled


class Neighbour:
    """The data plane of another peer, which does not accept any connection yet."""

    def __init__(self, identity: Identity, listener: Listener, credentials: Credentials) -> None:
        self.peer = identity.peer
        self.listener = listener
        self.credentials = credentials
        self.inbox = RingInbox()
        listener.handle("ring", self.inbox.handle)

    @property
    def endpoint(self) -> Endpoint:
        host, port = self.listener.address
        return Endpoint(self.peer, host, port, self.credentials.certificate_der)

    async def introduce(self, peer: PeerId, payload: bytes) -> bytes:
        """Answer an introduction as the node of this data plane would: trust the sender's
        certificate, and send our own endpoint."""
        self.listener.trust_certificate(
            Endpoint.from_wire(unpack(payload, bytes_max=4096)).certificate_der
        )
        return pack(self.endpoint.to_wire())


@contextmanager
def neighbour(identity: Identity) -> Iterator[Neighbour]:
    credentials = Credentials.create(identity)
    with Listener(credentials, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        yield Neighbour(identity, listener, credentials)


def key(context: Context, dialler: PeerId) -> RingKey:
    return RingKey(context.run, 3, 0, 1, dialler)


def opening(context: Context, found: list[SecureSocket]) -> Opening:
    """Return an opening of one stream with Ann. Its connection is appended to `found`."""
    hello = key(context, context.me).to_hello()
    ends = context.now() + context.timing.edge_s
    return Opening(ANN.peer, "", {1: hello}, ends, lambda number, it: found.append(it))


async def test_peer_is_accepted_after_its_introduction(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        answer_introductions(r.context)
        answer = r.network.handlers[ENDPOINT_PROTOCOL]
        with neighbour(ANN) as ann:

            def knock() -> None:
                hello = key(r.context, ANN.peer).to_hello()
                dial(ann.credentials, r.context.plane.endpoint, hello, deadline_s=5.0).close()

            with pytest.raises(PeerError, match="UNKNOWN_CA"):
                await trio.to_thread.run_sync(knock)
            reply = await answer(ANN.peer, pack(ann.endpoint.to_wire()))
            assert reply == pack(r.context.plane.endpoint.to_wire())
            await trio.to_thread.run_sync(knock)


async def test_peer_cannot_send_the_endpoint_of_a_different_peer(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        answer_introductions(r.context)
        with neighbour(ANN) as ann, pytest.raises(RemoteProtocolError, match="a different peer"):
            wire = pack(ann.endpoint.to_wire())
            await r.network.handlers[ENDPOINT_PROTOCOL](BOB.peer, wire)


async def test_unanswered_introduction_is_journaled_and_returns_none(tmp_path: Path) -> None:
    async def silent(peer: PeerId, payload: bytes) -> bytes:
        raise PeerTooSlow("no reply within 2.0 s", peer=peer)

    async with rig(tmp_path) as r:
        r.network.answer = silent
        assert await introduced(r.context, ANN.peer) is None
        assert [each["peer"] for each in r.said("not-introduced")] == [ANN.peer]


async def test_restarted_neighbour_is_reached_without_waiting_for_its_heartbeat(
    tmp_path: Path,
) -> None:
    """The node under test knows the neighbour's old address and certificate. The neighbour does not
    know the node yet."""
    async with rig(tmp_path) as r:
        with neighbour(ANN) as before:
            old = pack(before.endpoint.to_wire())
        r.context.peers.table.note_heartbeat(
            ANN.peer, heartbeat(r.run.id, endpoint=old), r.context.now()
        )
        with neighbour(ANN) as ann:
            r.network.answer = ann.introduce
            r.wait_for(edge_s=60.0)
            found: list[SecureSocket] = []
            opened = opening(r.context, found)
            await dial_persistently(r.context, opened)
            await settled(lambda: len(ann.inbox) == 1)
            found[0].close()
        assert len(opened.met) == 1, "the second dial reaches the neighbour"
        assert "refused" in opened.met[0]


async def test_unknown_neighbour_is_asked_for_its_endpoint_and_then_dialled(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        with neighbour(ANN) as ann:
            r.network.answer = ann.introduce
            found: list[SecureSocket] = []
            await dial_persistently(r.context, opening(r.context, found))
            assert [each.peer for each in found] == [ANN.peer]
            found[0].close()
        assert [peer for peer, _ in r.network.requested] == [ANN.peer]


@pytest.mark.parametrize("answers", [True, False], ids=["stalls the dial", "never answers"])
async def test_all_attempts_to_reach_a_neighbour_share_one_deadline(
    tmp_path: Path, answers: bool
) -> None:
    async with rig(tmp_path) as r:
        r.wait_for(edge_s=0.5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            credentials = Credentials.create(ANN)
            host, port = silent.getsockname()
            place = Endpoint(ANN.peer, host, port, credentials.certificate_der)

            async def introduce(peer: PeerId, payload: bytes) -> bytes:
                if not answers:
                    await trio.sleep_forever()
                return pack(place.to_wire())

            r.network.answer = introduce
            with trio.fail_after(USUAL.reduce.dial_s - 1.0), pytest.raises(PeerError):
                await dial_persistently(r.context, opening(r.context, []))


async def test_loopback_endpoint_of_a_remote_neighbour_is_not_dialled(
    tmp_path: Path,
) -> None:
    """If the node dialled a loopback address that a remote peer announces, a member could make it
    connect to services that listen on this machine for local programs only."""
    async with rig(tmp_path) as r:
        r.wait_for(edge_s=0.5)
        r.network.sites[ANN.peer] = "10.0.0.2"
        with neighbour(ANN) as ann:
            r.network.answer = ann.introduce
            found: list[SecureSocket] = []
            with pytest.raises(PeerError, match="on a loopback address"):
                await dial_persistently(r.context, opening(r.context, found))
        assert (len(ann.inbox), found) == (0, [])
