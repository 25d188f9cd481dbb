"""A peer that is not admitted can make a node use only little memory and time."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.io.exceptions import IOException
from libp2p.kad_dht.pb.kademlia_pb2 import Message, Record
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
)
from libp2p.utils.varint import (
    encode_uvarint,
    encode_varint_prefixed,
    read_varint_prefixed_bytes_limited,
)
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net import Network, discovery, open_network
from p2ptrain.net.host.bounds import NAME_BYTES_MAX, STREAMS_MAX, UNREAD_BYTES_MAX
from p2ptrain.net.kad import ANSWER_BYTES_MAX, key_of, providers_in, question
from p2ptrain.net.records import Admitted

from .conftest import (
    DEADLINE_S,
    LOOPBACK,
    echo,
    eventually,
    everybody,
    host_of,
    identity,
    networks,
)
from .hostile import Hostile, hostile_to

KAD = "/ipfs/kad/1.0.0"
RUN = "ab" * 32
MESHSUB = "/meshsub/1.1.0"
P = "/test/1"
FRAME_BYTES = 60 << 10
WINDOW_BYTES = 256 << 10


def nobody(peer: PeerId) -> bool:
    return False


def muxed(victim: Network, hostile: Hostile) -> Yamux:
    """Return the victim's end of its connection with the hostile peer."""
    (connection,) = host_of(victim).get_network().get_connections(ID.from_base58(hostile.peer))
    ours = connection.muxed_conn
    assert isinstance(ours, Yamux)
    return ours


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_DATA, flags, stream_id, len(payload)) + payload


async def send(hostile: Hostile, *frames: bytes) -> None:
    """Send raw frames until the connection breaks."""
    (connection,) = hostile.host.get_network().get_connections(hostile.victim)
    theirs = connection.muxed_conn
    assert isinstance(theirs, Yamux)
    with suppress(IOException):
        for frame in frames:
            await theirs.secured_conn.write(frame)


async def all_arrived(ping: INetStream) -> None:
    """Wait until everything sent so far has been processed. Frames are processed in order, so a
    ping is answered only after that."""
    with trio.fail_after(DEADLINE_S):
        await ping.write(bytes(32))
        await ping.read(32)


@pytest.mark.parametrize("flags", [0, FLAG_SYN], ids=["one stream", "many streams"])
async def test_sender_that_exceeds_its_windows_is_disconnected(flags: int) -> None:
    async with networks(1, nobody) as (victim,), hostile_to(victim) as hostile:
        stream = await hostile.open(MESHSUB)
        await eventually(lambda: victim.statistics()["gossip_waiting"] == [hostile.peer])
        connection, most = muxed(victim, hostile), 0
        first = stream.muxed_stream.stream_id  # type: ignore[attr-defined]
        for number in range(1, 5 * UNREAD_BYTES_MAX // FRAME_BYTES):
            stream_id = first + 2 * number if flags else first
            await send(hostile, data(stream_id, bytes(FRAME_BYTES), flags))
            most = max(most, sum(map(len, connection.stream_buffers.values())))
        await eventually(lambda: victim.connected() == set(), deadline_s=10)
        assert WINDOW_BYTES < most <= UNREAD_BYTES_MAX


async def test_sender_that_keeps_to_its_windows_stays_connected() -> None:
    """The sender fills the windows of three streams, and the victim does not read them."""
    async with networks(1, nobody) as (victim,), hostile_to(victim) as hostile:
        read_not = trio.Event()

        async def wait(stream: object) -> None:
            await read_not.wait()

        host_of(victim).set_stream_handler(TProtocol(P), wait)
        almost = WINDOW_BYTES - 200  # the protocol's name also counts
        for _ in range(3):
            await (await hostile.open(P)).write(bytes(almost))
        held = muxed(victim, hostile).stream_buffers
        await eventually(lambda: sum(map(len, held.values())) == 3 * almost)
        victim.handle("/test/2", echo, anyone=True)
        stream = await hostile.open("/test/2")
        await stream.write(b"\x00\x00\x00\x01x")
        assert await stream.read(6) == b"\x00\x00\x00\x02\x00x"


async def test_number_of_streams_on_a_connection_is_bounded() -> None:
    async with networks(1, nobody) as (victim,), hostile_to(victim) as hostile:
        connection, ping = muxed(victim, hostile), await hostile.open("/ipfs/ping/1.0.0")
        for number in range(3 * STREAMS_MAX):
            syn = (0, TYPE_WINDOW_UPDATE, FLAG_SYN, 1001 + 2 * number, 0)
            await send(hostile, struct.pack(YAMUX_HEADER_FORMAT, *syn))
        await all_arrived(ping)
        await eventually(lambda: len(connection.streams) <= STREAMS_MAX, deadline_s=5)
        assert victim.connected() == {hostile.peer}


async def test_length_of_a_protocol_name_is_bounded() -> None:
    """The bound applies to streams, and to connections before the handshake."""
    endless = encode_uvarint(1 << 40) + bytes(4 * NAME_BYTES_MAX)
    async with networks(1, nobody) as (victim,), hostile_to(victim) as hostile:
        stream = await hostile.host.get_network().new_stream(hostile.victim)
        with trio.fail_after(5), pytest.raises(StreamError):
            await stream.write(endless)
            while True:
                await stream.read(1 << 10)
        port = int(victim.addresses()[0].split("/")[4])
        async with await trio.open_tcp_stream("127.0.0.1", port) as raw:
            with trio.fail_after(5), suppress(trio.BrokenResourceError):
                await raw.send_all(endless)
                while await raw.receive_some():
                    pass
        victim.handle(P, echo, anyone=True)
        with trio.fail_after(DEADLINE_S):
            await hostile.open(P)


async def still_open(raw: trio.SocketStream) -> bool:
    """Return whether the other side has not closed the connection."""
    with trio.move_on_after(0.01), suppress(trio.BrokenResourceError):
        while await raw.receive_some():
            pass
        return False
    return True


async def test_handshakes_are_bounded_and_shared_fairly_between_addresses() -> None:
    """An address that dials repeatedly loses only its own handshakes. Peers at other addresses can
    connect meanwhile."""
    async with networks(2, handshakes_max=8) as (victim, honest), AsyncExitStack() as stack:
        port = int(victim.addresses()[0].split("/")[4])

        async def dial(source: str) -> trio.SocketStream:
            raw = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
            await raw.receive_some(1 << 10)  # libp2p sends first, so the handshake was accepted
            return await stack.enter_async_context(raw)

        patient = await dial("127.0.0.2")
        crowd = [await dial("127.0.0.3") for _ in range(30)]
        assert sum([await still_open(raw) for raw in crowd]) == 7
        assert await still_open(patient)
        assert await honest.connect(victim.addresses()[0], deadline_s=5) == victim.peer


async def test_ended_connections_leave_no_tasks_behind() -> None:
    def living() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    async with networks(1) as (victim,):
        before = living()
        for number in range(2, 12):
            async with open_network(identity(number), listen=LOOPBACK, admitted=everybody) as other:
                await other.connect(victim.addresses()[0], deadline_s=DEADLINE_S)
                await eventually(lambda: bool(victim.connected()))
        await eventually(lambda: living() < before + 10, 10)


async def tell(hostile: Hostile, message: Message) -> bytes:
    """Send `message` to the other side's DHT and return the answer."""
    stream = await hostile.open(KAD)
    answer = b""
    with suppress(StreamError), trio.fail_after(DEADLINE_S):
        await stream.write(encode_varint_prefixed(message.SerializeToString()))
        await stream.close_write()  # type: ignore[attr-defined]
        while piece := await stream.read(1 << 16):
            answer += piece
    return answer


def provider(hostile: Hostile, addresses: int) -> Message:
    message = Message(type=Message.ADD_PROVIDER, key=key_of(RUN))
    told = message.providerPeers.add(id=hostile.host.get_id().to_bytes())
    told.addrs.extend(
        Multiaddr(f"/ip4/10.0.0.1/tcp/{port}").to_bytes() for port in range(1, 1 + addresses)
    )
    return message


async def on_record(hostile: Hostile) -> dict[PeerId, int]:
    """Ask the victim for the peers that it has on record for the run. Return the number of
    addresses of each."""
    stream = await hostile.open(KAD)
    with trio.fail_after(DEADLINE_S):
        await stream.write(encode_varint_prefixed(question(key_of(RUN))))
        reply = await read_varint_prefixed_bytes_limited(stream, ANSWER_BYTES_MAX)
    await stream.reset()
    found = providers_in(reply, key_of(RUN))
    return {peer: len(addresses) for peer, addresses in found.items()}


@pytest.mark.parametrize("admitted", [nobody, everybody])
async def test_dht_does_not_store_values(admitted: Admitted) -> None:
    async with networks(1, admitted) as (victim,), hostile_to(victim) as hostile:
        record = Record(key=b"anything", value=bytes(1000))
        put = Message(type=Message.PUT_VALUE, key=b"anything", record=record)
        assert await tell(hostile, put) == b""
        answer = await tell(hostile, Message(type=Message.GET_VALUE, key=b"anything"))
        assert not Message.FromString(answer[1:]).HasField("record")


async def test_only_admitted_peers_get_a_record_of_at_most_8_addresses() -> None:
    admitted: set[PeerId] = set()
    async with networks(1, admitted.__contains__) as (victim,), hostile_to(victim) as hostile:
        assert await tell(hostile, provider(hostile, 3)) == b""
        admitted.add(hostile.peer)
        assert await on_record(hostile) == {}
        assert await tell(hostile, provider(hostile, 100)) == b""
        assert await on_record(hostile) == {hostile.peer: 8}
        await tell(hostile, provider(hostile, 10_000))
        assert await on_record(hostile) == {hostile.peer: 8}


async def test_dht_answers_do_not_name_a_stranger_that_sent_a_query() -> None:
    """If a peer opens a stream, plain libp2p adds the peer to its routing table. Then it sends
    questions to the peer, and names the peer to others."""
    async with networks(1, nobody) as (victim,), hostile_to(victim) as hostile:
        asked = Message(type=Message.FIND_NODE, key=hostile.host.get_id().to_bytes())
        assert await tell(hostile, asked)
        async with hostile_to(victim, identity(50)) as other:
            answer = await tell(other, asked)
            assert list(Message.FromString(answer[1:]).closerPeers) == []


async def test_number_of_answers_to_one_peers_queries_is_limited() -> None:
    async with networks(1) as (victim,), hostile_to(victim) as hostile:
        asked = Message(type=Message.FIND_NODE, key=b"anything")
        answers = [await tell(hostile, asked) for _ in range(2 * discovery.QUERIES_AT_ONCE)]
        assert answers[0]
        assert b"" in answers


def introduction(hostile: Hostile, *, listened: int, recorded: int, protocols: int) -> bytes:
    """Return a correctly signed identify message with these numbers of addresses and protocols."""
    addresses = [Multiaddr(f"/ip4/10.0.{n >> 8}.{n & 255}/tcp/1") for n in range(1, 1 + recorded)]
    record = PeerRecord(hostile.host.get_id(), addresses, seq=2**62)
    envelope = seal_record(record, hostile.host.get_private_key())
    message = Identify(
        listen_addrs=[Multiaddr(f"/ip4/10.1.0.1/tcp/{n}").to_bytes() for n in range(listened)],
        protocols=[f"/{n}" for n in range(protocols)],
        signedPeerRecord=envelope.marshal_envelope(),
    )
    return bytes(encode_varint_prefixed(message.SerializeToString()))


def known_of(victim: Network, hostile: Hostile) -> tuple[int, int]:
    """Return how many addresses and protocols of the hostile peer the victim has stored."""
    known: Any = host_of(victim).get_peerstore()
    data = known.peer_data_map[hostile.host.get_id()]
    return len(data.addrs), len(data.protocols)


async def push(hostile: Hostile, introduction: bytes) -> None:
    """Push `introduction`. Return once the other side has processed it."""
    stream = await hostile.open("/ipfs/id/push/1.0.0")
    with suppress(StreamError):
        await stream.write(introduction)
        await stream.read(1)


async def test_number_of_stored_addresses_and_protocols_of_a_peer_is_bounded() -> None:
    async with networks(1) as (victim,), hostile_to(victim) as hostile:
        await push(hostile, introduction(hostile, listened=16, recorded=0, protocols=70))
        assert known_of(victim, hostile) == (0, 64)
        await push(hostile, introduction(hostile, listened=300, recorded=100, protocols=1))
        assert known_of(victim, hostile) == (16, 1)


async def test_thousands_of_addresses_of_a_stranger_do_not_block_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparing all these addresses with each other would take a minute."""
    compared = 0
    same = Multiaddr.__eq__

    def count(one: Multiaddr, other: object) -> bool:
        nonlocal compared
        compared += 1
        return bool(same(one, other))

    monkeypatch.setattr(Multiaddr, "__eq__", count)
    async with networks(1) as (victim,), hostile_to(victim) as hostile:
        await push(hostile, introduction(hostile, listened=0, recorded=20_000, protocols=0))
        await push(hostile, introduction(hostile, listened=0, recorded=300, protocols=0))
        assert compared < 2_000


async def test_number_of_addresses_kept_from_a_gossiped_record_is_bounded() -> None:
    async with networks(1) as (victim,), hostile_to(victim) as hostile:
        told = Identify.FromString(
            introduction(hostile, listened=0, recorded=5_000, protocols=0)[3:]
        )
        stream = await hostile.open(MESHSUB)
        frame = rpc_pb2.RPC(senderRecord=told.signedPeerRecord).SerializeToString()
        await stream.write(encode_varint_prefixed(frame))
        await all_arrived(await hostile.open("/ipfs/ping/1.0.0"))
        assert known_of(victim, hostile)[0] <= 16


async def test_peer_that_is_not_admitted_can_find_members_of_the_run() -> None:
    member = identity(2).peer
    async with networks(3, [member.__eq__, everybody, nobody]) as (seed, old, new):
        await old.connect(seed.addresses()[0])
        await new.connect(seed.addresses()[0])
        await old.provide(RUN)
        with trio.fail_after(DEADLINE_S):
            while dict(await new.find_providers(RUN)).get(member) != old.addresses():
                pass


async def test_idle_dht_streams_of_one_peer_do_not_block_others() -> None:
    async with networks(2) as (victim, other), hostile_to(victim) as hostile:
        for _ in range(30):
            await hostile.open(KAD)
        await victim.provide(RUN)
        await other.connect(victim.addresses()[0])
        with trio.fail_after(10):
            assert victim.peer in dict(await other.find_providers(RUN))
