"""Limits on libp2p's identify messages: the addresses, protocols and signed record that a peer
sends.

libp2p 0.8.1 accepts a megabyte, and compares each address with all earlier addresses. One message
from a stranger could block our event loop for twenty minutes. This module does not decide which
peers may connect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libp2p.abc import IHost, INetStream, IPeerStore
from libp2p.host import basic_host
from libp2p.identity import update as of_identify
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push import identify_push
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.kad_dht import utils as of_dht
from libp2p.peer.envelope import Envelope, consume_envelope
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub import gossipsub
from libp2p.pubsub import utils as of_gossip
from libp2p.utils.varint import read_length_prefixed_protobuf
from multiaddr import Multiaddr

MESSAGE_BYTES_MAX = 8 << 10
"""Maximum bytes of a message. A node's own message has about one KiB: about fifteen protocols, and
the node's addresses twice."""
RECORD_BYTES_MAX = 4 << 10
ADDRESSES_MAX = 16
"""Maximum number of addresses of one peer, from all sources. Heartbeats announce 8."""
PROTOCOLS_MAX = 64


def bound_introductions() -> None:
    """Apply the limits to every host of this process from now on."""
    for module in (basic_host, identify_push):
        setattr(module, read_length_prefixed_protobuf.__name__, _read)
        setattr(module, update_peerstore_from_identify.__name__, _update)
    for module in (of_identify, of_dht, of_gossip, gossipsub):
        setattr(module, consume_envelope.__name__, _open_record)


def bound_peerstore(host: IHost) -> None:
    """Make the host's peerstore keep only the newest addresses of a peer, and only records that the
    peer itself signed."""
    store: Any = host.get_peerstore()
    add, consume = store.add_addrs, store.consume_peer_record

    def add_few(peer: ID, addresses: Sequence[Multiaddr], ttl: int = 0) -> None:
        add(peer, addresses[:ADDRESSES_MAX], ttl)
        if peer in store.peer_data_map:
            del store.peer_data_map[peer].addrs[:-ADDRESSES_MAX]

    def take(envelope: Envelope, ttl: int) -> bool:
        """Accept data sent with a peer's record even if the record is older than the known one.

        libp2p ignores everything sent with an older record, for two hours. So a peer that restarted
        with its clock set back was cut off from all peers that knew it. The same happened to the
        older of two nodes with the same identity after the newer node had left.
        """
        is_its_own = ID.from_pubkey(envelope.public_key) == envelope.record().peer_id
        if is_its_own:
            consume(envelope, ttl)
        return is_its_own

    store.add_addrs, store.consume_peer_record = add_few, take


async def _read(stream: INetStream, use_varint_format: bool = True) -> bytes:
    """Replace libp2p's own function, with a limit for this one message."""
    try:
        return await read_length_prefixed_protobuf(stream, use_varint_format, MESSAGE_BYTES_MAX)
    except Exception:
        await stream.reset()  # otherwise libp2p keeps reading, even if the peer is gone
        raise


async def _update(store: IPeerStore, peer: ID, message: Identify) -> None:
    del message.listen_addrs[ADDRESSES_MAX:]
    del message.protocols[PROTOCOLS_MAX:]
    await update_peerstore_from_identify(store, peer, message)


def _open_record(record: bytes, domain: str) -> tuple[Envelope, PeerRecord]:
    """Replace libp2p's own function, which parses records as large as a gossip frame."""
    if len(record) > RECORD_BYTES_MAX:
        raise ValueError(f"a peer's record of {len(record)} bytes is too long")
    return consume_envelope(record, domain)
