"""How often a stream tells its sender that there is room again: for half a window at a time.

libp2p 0.8.1 does it after every read, and it reads the length of a message byte by byte: two frames
in three that a gossiping host sent, each encrypted and sent on its own, said that a byte had been
read. That was a third to a half of a node's work between outer steps, and a machine that was short
of cores spent all of its time on it. Half a window is what Yamux's own implementation waits for; a
sender never runs dry by it, since the other half is still its to fill.

It does not know what streams carry.
"""

from __future__ import annotations

from libp2p.stream_muxer.yamux.yamux import YamuxStream

_give = YamuxStream._auto_tune_and_send_window_update


def give_credit_by_halves() -> None:
    """From now on, in every stream of this process."""
    setattr(YamuxStream, _give.__name__, _give_if_half)


async def _give_if_half(stream: YamuxStream, *, bytes_read: int = 0) -> None:
    """In place of libp2p's own, which is called after a read of so many bytes. Those it counts by
    itself: all that is neither granted nor in the buffer has been read.
    """
    kept = stream.recv_window + len(stream.conn.stream_buffers.get(stream.stream_id, b""))
    if 2 * (stream.target_recv_window - kept) >= stream.target_recv_window:
        await _give(stream)
