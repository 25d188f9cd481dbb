"""The DHT: which records are kept, for how long, and which answers a peer gets."""

from __future__ import annotations

import hashlib

import multihash
import pytest
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net.kad import (
    ANSWER_BYTES_MAX,
    CLOSER_MAX,
    REQUEST_BYTES_MAX,
    KadServer,
    announcement,
    key_of,
    nearest,
    providers_in,
    question,
)
from p2ptrain.net.records import KEYS_MAX, PROVIDERS_MAX, RECORD_S, ProviderRecords

from .conftest import identity

KEY = key_of("a run")
ME = identity(1).peer
MEMBER = identity(2).peer
STRANGER = identity(3).peer
PEERS = [identity(number).peer for number in range(2, 60)]
ADDRESS = "/ip4/10.0.0.1/tcp/4201"


def everybody(peer: PeerId) -> bool:
    return True


def answerer(
    records: ProviderRecords, neighbours: dict[PeerId, list[str]] | None = None
) -> KadServer:
    return KadServer(ME, records, lambda: neighbours or {})


def test_key_is_a_sha2_256_multihash() -> None:
    """Other implementations look up a run by a CID, which contains such a multihash."""
    decoded = multihash.decode(KEY)
    assert (decoded.name, decoded.digest) == ("sha2-256", hashlib.sha256(b"a run").digest())


def test_recorded_peers_are_found() -> None:
    records = ProviderRecords(everybody)
    asked = answerer(records, {STRANGER: [ADDRESS]})
    assert asked.answer(MEMBER, announcement(KEY, MEMBER, [ADDRESS]), 0.0) == b""
    reply = asked.answer(STRANGER, question(KEY), 1.0)
    assert reply is not None
    assert providers_in(reply, KEY) == {MEMBER: [f"{ADDRESS}/p2p/{MEMBER}"]}
    assert list(Message.FromString(reply).closerPeers) == [], (
        "an answer must not list the asking peer"
    )
    assert providers_in(reply, key_of("another")) == {}


def test_peer_can_announce_only_itself() -> None:
    records = ProviderRecords(everybody)
    assert answerer(records).answer(STRANGER, announcement(KEY, MEMBER, [ADDRESS]), 0.0) is None
    assert records.of(KEY, 0.0) == {}


def test_peers_that_are_not_admitted_are_neither_stored_nor_named() -> None:
    admitted = {MEMBER}
    records = ProviderRecords(admitted.__contains__)
    for peer in (MEMBER, STRANGER):
        records.add(KEY, peer, [ADDRESS], 0.0)
    assert list(records.of(KEY, 0.0)) == [MEMBER]
    admitted.clear()
    assert records.of(KEY, 0.0) == {}


def test_records_expire_except_our_own() -> None:
    records = ProviderRecords(everybody)
    records.announce(KEY, [f"{ADDRESS}/p2p/{ME}"])
    records.add(KEY, MEMBER, [ADDRESS], 0.0)
    reply = answerer(records).answer(STRANGER, question(KEY), RECORD_S)
    assert reply is not None
    assert list(providers_in(reply, KEY)) == [ME]


def test_old_records_are_replaced_by_newer_ones() -> None:
    records = ProviderRecords(everybody)
    for number, peer in enumerate(PEERS):
        records.add(KEY, peer, [ADDRESS], 0.0)
        assert list(records.of(KEY, 0.0))[-1] == peer
        assert len(records.of(KEY, 0.0)) == min(number + 1, PROVIDERS_MAX)
    for number in range(KEYS_MAX):
        records.add(b"%d" % number, MEMBER, [ADDRESS], 0.0)
    assert records.of(KEY, 0.0) == {}
    assert all(records.of(b"%d" % number, 0.0) for number in range(KEYS_MAX))


@pytest.mark.parametrize("key", [b"", bytes(81)])
def test_keys_of_wrong_length_are_refused(key: bytes) -> None:
    for kind in (Message.ADD_PROVIDER, Message.GET_PROVIDERS, Message.FIND_NODE):
        asked = Message(type=kind, key=key).SerializeToString()
        assert answerer(ProviderRecords(everybody)).answer(MEMBER, asked, 0.0) is None


def test_nearest_neighbours_fit_into_the_size_limit_of_an_answer() -> None:
    name = ".".join(["x" * 63, "y" * 63, "z" * 63, "w" * 61])
    names = [f"/dns4/{name}/tcp/4201", f"/dns6/{name}/tcp/4201"]
    addresses = names + [f"/ip6/2001:db8::{n}/tcp/4201" for n in range(1, 7)]
    records = ProviderRecords(everybody)
    for peer in PEERS:
        assert records.add(KEY, peer, addresses, 0.0)
    records.announce(KEY, addresses)
    reply = answerer(records, dict.fromkeys(PEERS, addresses)).answer(STRANGER, question(KEY), 0.0)
    assert reply is not None
    assert len(reply) < ANSWER_BYTES_MAX
    told = [str(ID(each.id)) for each in Message.FromString(reply).closerPeers]
    assert told == nearest(KEY, set(PEERS) - {STRANGER}, CLOSER_MAX)
    assert len(announcement(KEY, ME, addresses)) < REQUEST_BYTES_MAX


def test_only_a_bounded_part_of_an_answer_is_read() -> None:
    reply = Message(type=Message.GET_PROVIDERS, key=KEY)
    reply.providerPeers.add(id=b"\x01" * 5_000)
    reply.providerPeers.add(id=b"\x12\x20" + bytes(32), addrs=[Multiaddr(ADDRESS).to_bytes()])
    addresses = [b"\xff\xff", *[Multiaddr(ADDRESS).to_bytes()] * 1_000]
    for peer in PEERS:
        reply.providerPeers.add(id=ID.from_base58(peer).to_bytes(), addrs=addresses)
    found = providers_in(reply.SerializeToString(), KEY)
    assert list(found) == PEERS[: PROVIDERS_MAX + 1]
    assert {len(addresses) for addresses in found.values()} == {8}
