"""How much one connection can make us hold. It does not know what streams carry, nor who is whom.

libp2p 0.8.1 leaves all of it open. It logs that a peer sends more than its window, and keeps what
it sent; it takes any number of streams; and the name of a protocol may be of any length, even
before the handshake. So a stranger could fill our memory as fast as its line allows.
"""

from __future__ import annotations

from typing import Any

import trio
from libp2p.exceptions import ParseError
from libp2p.io.abc import Reader
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.stream_muxer.yamux import yamux
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

UNREAD_BYTES_MAX = 1 << 20
"""Four windows, of all streams of a connection together; thirty requests of 1 MiB at once leave
half a window. Whoever keeps to its windows leaves no more than one or two unread: of gossip, while
it is not admitted or we are busy with a frame.
"""
STREAMS_MAX = 128
"""Open at once on one connection, the other side's and ours: 64 requests, and what is kept open."""
NAME_BYTES_MAX = 1 << 10
"""A message of a negotiation: the name of a protocol, of which ours have less than 50 bytes."""


_read_payload = Yamux._read_data_body


def bound_connections() -> None:
    """From now on, on every connection of this process.

    Windows grew to 16 MiB with whoever filled them, which a busy reader would then have to hold.
    What goes over the control plane is too little to need it.
    """
    setattr(Yamux, _read_payload.__name__, _read_payload_if_it_fits)  # it takes no class of ours
    yamux.MAX_WINDOW_SIZE = yamux.DEFAULT_WINDOW_SIZE
    multiselect_communicator.read_delim = _read_name  # type: ignore[attr-defined]


def is_crowded(muxed: Any) -> bool:
    """Whether the newest stream of the connection is one too many."""
    return len(muxed.streams) > STREAMS_MAX


async def _read_payload_if_it_fits(muxed: Yamux, length: int) -> bytes:
    """In place of libp2p's own, through which every payload comes, read by anybody or not."""
    unread = sum(map(len, muxed.stream_buffers.values()))
    if unread + length > UNREAD_BYTES_MAX:
        # The one error on which libp2p closes the connection, whatever kind of frame it was.
        raise trio.TooSlowError("the peer sends more than its windows")
    return await _read_payload(muxed, length)


async def _read_name(reader: Reader) -> bytes:
    """In place of libp2p's own, which knows no limit."""
    message = await read_varint_prefixed_bytes_limited(reader, NAME_BYTES_MAX)
    if not message.endswith(b"\n"):
        raise ParseError("a message of a negotiation ends with a new line")
    return message[:-1]
