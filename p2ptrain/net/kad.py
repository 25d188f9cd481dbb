"""The requests and answers of the Kademlia DHT, in the form that go-libp2p and js-libp2p use.

libp2p 0.8.1 has its own DHT, which is not used. It puts each stranger that opens a stream into its
routing table, queries strangers, and stores values for anybody. It dials every peer that an answer
names, even at DNS addresses. Here the routing table is the set of connected admitted peers, and
peers that an answer names are not dialled.

A key is the sha2-256 multihash of a name, so that other implementations can look it up by its CID.

This module does no I/O: bytes and times are arguments. See
https://github.com/libp2p/specs/tree/master/kad-dht.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from itertools import islice

import base58
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from multiaddr import Multiaddr

from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import parse, parse_told
from p2ptrain.net.book import ADDRESSES_PER_PEER_MAX
from p2ptrain.net.records import ANNOUNCED_MAX, KEY_BYTES_MAX, PROVIDERS_MAX, ProviderRecords

log = logging.getLogger(__name__)

PROTOCOL = "/ipfs/kad/1.0.0"

REQUEST_BYTES_MAX = 8 << 10
"""Maximum bytes of a request. The longest request is an announcement with addresses and, if it
comes from another implementation, signed records."""
ANSWER_BYTES_MAX = 32 << 10
"""Maximum bytes of an answer, which names at most 41 peers with 8 addresses each. An answer is
usually about 8 KiB long, and about 28 KiB if each peer has two DNS names of 253 bytes."""
CLOSER_MAX = 20
"""Maximum number of peers named in an answer: Kademlia's k."""
TOLD_MAX = 64
"""Maximum number of peers that we read from one answer."""
ID_BYTES_MAX = 64

_SHA2_256 = b"\x12\x20"

Found = Mapping[PeerId, list[str]]


def key_of(name: str) -> bytes:
    """Return the key of `name` in the DHT: its sha2-256 multihash."""
    return _SHA2_256 + hashlib.sha256(name.encode()).digest()


def nearest(key: bytes, peers: Iterable[PeerId], count: int) -> list[PeerId]:
    """Return the `count` of `peers` that are nearest to `key` by Kademlia's distance."""
    target = _position(key)
    return nsmallest(count, peers, key=lambda peer: _position(base58.b58decode(peer)) ^ target)


@dataclass(frozen=True)
class KadServer:
    """Answers anybody's requests. `neighbours` returns addresses of connected, admitted peers."""

    me: PeerId
    records: ProviderRecords
    neighbours: Callable[[], Found]

    def answer(self, asker: PeerId, request: bytes, now: float) -> bytes | None:
        """Return the answer to `request`; b"" if it needs none; None if the stream should be reset.
        Raises google.protobuf.message.DecodeError if `request` is not a message of the DHT."""
        message = Message.FromString(request)
        if message.type == Message.PING:
            return bytes(Message(type=Message.PING).SerializeToString())
        if not 0 < len(message.key) <= KEY_BYTES_MAX:
            return None
        if message.type == Message.ADD_PROVIDER:
            return b"" if self._take_announcement(asker, message, now) else None
        if message.type in (Message.FIND_NODE, Message.GET_PROVIDERS, Message.GET_VALUE):
            return bytes(self._look_up(asker, message, now).SerializeToString())
        return None  # a request to store a value, which we do not do

    def _take_announcement(self, asker: PeerId, message: Message, now: float) -> bool:
        """Store an announcement. Return whether it was accepted. There is no reply to an accepted
        announcement, because go-libp2p would take it for the answer to its next request."""
        told = [each for each in message.providerPeers[:TOLD_MAX] if _peer_of(each) == asker]
        return bool(told) and self.records.add(
            message.key, asker, _texts(told[-1].addrs, ANNOUNCED_MAX), now
        )

    def _look_up(self, asker: PeerId, message: Message, now: float) -> Message:
        reply = Message(type=message.type, key=message.key)
        neighbours = dict(self.neighbours())
        neighbours.pop(asker, None)
        if message.type == Message.GET_PROVIDERS:
            for peer, addresses in self.records.of(message.key, now).items():
                _add(reply.providerPeers.add(), peer, addresses, peer in neighbours)
            if own := self.records.own(message.key):
                _add(reply.providerPeers.add(), self.me, own, True)
        for peer in nearest(message.key, neighbours, CLOSER_MAX):
            _add(reply.closerPeers.add(), peer, neighbours[peer], True)
        return reply


def question(key: bytes) -> bytes:
    """Return a request for the providers of `key`."""
    return bytes(Message(type=Message.GET_PROVIDERS, key=key).SerializeToString())


def announcement(key: bytes, me: PeerId, addresses: list[str]) -> bytes:
    """Return the message that announces us as a provider of `key`."""
    message = Message(type=Message.ADD_PROVIDER, key=key)
    _add(message.providerPeers.add(), me, addresses, True)
    return bytes(message.SerializeToString())


def providers_in(reply: bytes, key: bytes) -> dict[PeerId, list[str]]:
    """Return the peers in an answer to `question(key)`, with the addresses given for them. Raises
    google.protobuf.message.DecodeError if the answer is not a message of the DHT."""
    message = Message.FromString(reply)
    if message.type != Message.GET_PROVIDERS or message.key != key:
        return {}
    found: dict[PeerId, list[str]] = {}
    for told in message.providerPeers[:TOLD_MAX]:
        peer = _peer_of(told)
        if peer is not None and len(found) < PROVIDERS_MAX + 1:
            addresses = parse_told(_texts(told.addrs, ANNOUNCED_MAX), peer)
            found[peer] = [str(address) for address in addresses][:ADDRESSES_PER_PEER_MAX]
    return found


def _add(entry: Message.Peer, peer: PeerId, addresses: list[str], connected: bool) -> None:
    entry.id = base58.b58decode(peer)
    entry.connection = Message.CONNECTED if connected else Message.CAN_CONNECT
    entry.addrs.extend(_binary(address) for address in addresses)


@lru_cache(maxsize=4096)
def _binary(address: str) -> bytes:
    """Return the binary form of `address` without its peer id. A conversion takes 40 µs."""
    return bytes(Multiaddr(parse(address).transport).to_bytes())


def _peer_of(told: Message.Peer) -> PeerId | None:
    if len(told.id) > ID_BYTES_MAX:
        return None
    peer = PeerId(base58.b58encode(told.id).decode())
    return peer if is_peer_id(peer) else None


def _texts(addresses: Iterable[bytes], count: int) -> list[str]:
    """Return the first `count` addresses as text; malformed ones are skipped."""
    texts = []
    for binary in islice(addresses, count):
        try:
            texts.append(str(Multiaddr(binary)))
        except Exception as exc:  # multiaddr raises errors of many kinds
            log.debug("an address in a DHT message is malformed: %r", exc)
    return texts


def _position(identifier: bytes) -> int:
    return int.from_bytes(hashlib.sha256(identifier).digest(), "big")
