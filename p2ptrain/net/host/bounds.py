"""Limits on the memory that one connection can occupy.

libp2p 0.8.1 has no such limits. If a peer sends more than its window, libp2p logs that and keeps
the bytes. It accepts any number of streams. A protocol name may have any length, even before the
handshake. So a stranger could fill our memory as fast as its connection allows.
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
"""Maximum number of unread bytes of all streams of a connection: four windows. With thirty
simultaneous requests of 1 MiB, half a window is unread. If a peer respects its windows, at most
two windows are unread: those of its gossip, while the peer is not admitted or this node is busy."""
STREAMS_MAX = 128
"""Maximum number of open streams of one connection, counting both sides: 64 requests, and the
long-lived streams."""
NAME_BYTES_MAX = 1 << 10
"""Maximum bytes of a negotiation message: the name of a protocol. Our names have fewer than 50
bytes."""


_read_payload = Yamux._read_data_body


def bound_connections() -> None:
    """Apply the limits to every connection of this process from now on.

    libp2p let a window grow to 16 MiB for a peer that filled it, and a busy reader would have to
    hold all of that. The control plane carries too little data to need large windows.
    """
    setattr(Yamux, _read_payload.__name__, _read_payload_if_it_fits)  # libp2p accepts no subclass
    yamux.MAX_WINDOW_SIZE = yamux.DEFAULT_WINDOW_SIZE
    multiselect_communicator.read_delim = _read_name  # type: ignore[attr-defined]


def is_crowded(muxed: Any) -> bool:
    """Return whether the connection has more streams than the limit."""
    return len(muxed.streams) > STREAMS_MAX


async def _read_payload_if_it_fits(muxed: Yamux, length: int) -> bytes:
    """Replace libp2p's own function for receiving a payload, which has no limit."""
    unread = sum(map(len, muxed.stream_buffers.values()))
    if unread + length > UNREAD_BYTES_MAX:
        # This is the only error on which libp2p closes the connection for every kind of frame.
        raise trio.TooSlowError("the peer sends more data than its windows allow")
    return await _read_payload(muxed, length)


async def _read_name(reader: Reader) -> bytes:
    """Replace libp2p's own function, which has no limit."""
    message = await read_varint_prefixed_bytes_limited(reader, NAME_BYTES_MAX)
    if not message.endswith(b"\n"):
        raise ParseError("a negotiation message must end with a newline")
    return message[:-1]
