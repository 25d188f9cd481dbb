"""Send window updates for half a window at a time, not after every read.

libp2p 0.8.1 sends one after every read, and it reads the length of a message byte by byte. Two of
three frames that a gossiping host sent, each encrypted and sent alone, said that one byte had been
read. That was a third to a half of a node's work between outer steps, and a machine with too few
cores spent all its time on it. Yamux's own implementation also waits for half a window. A sender
never runs dry, since it can still fill the other half.

The module does not know what streams carry.
"""

from __future__ import annotations

from libp2p.stream_muxer.yamux.yamux import YamuxStream

_give = YamuxStream._auto_tune_and_send_window_update


def give_credit_by_halves() -> None:
    """Apply this to every stream of this process from now on."""
    setattr(YamuxStream, _give.__name__, _give_if_half)


async def _give_if_half(stream: YamuxStream, *, bytes_read: int = 0) -> None:
    """Replace libp2p's own function, which is called after a read of `bytes_read`. libp2p counts
    the bytes by itself: all that are neither granted nor in the buffer have been read.
    """
    kept = stream.recv_window + len(stream.conn.stream_buffers.get(stream.stream_id, b""))
    if 2 * (stream.target_recv_window - kept) >= stream.target_recv_window:
        await _give(stream)
