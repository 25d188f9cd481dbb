"""Send window updates for half a window at a time, not after every read.

libp2p 0.8.1 sends an update after every read, and it reads the length of a message byte by byte.
Two thirds of the frames that a gossiping host sent were updates for one byte, each encrypted and
sent separately. The updates took a third to a half of a node's CPU time between outer steps, and
all of the CPU time on a machine with too few cores. The original Yamux implementation also waits
for half a window. The sender does not stall, since it can still fill the other half.
"""

from __future__ import annotations

from libp2p.stream_muxer.yamux.yamux import YamuxStream

_give = YamuxStream._auto_tune_and_send_window_update


def give_credit_by_halves() -> None:
    """Apply this to every stream of this process from now on."""
    setattr(YamuxStream, _give.__name__, _give_if_half)


async def _give_if_half(stream: YamuxStream, *, bytes_read: int = 0) -> None:
    """Replace libp2p's own function, which is called after each read. `bytes_read` is not needed:
    the bytes to grant are the window, minus what may still be sent and what is in the buffer."""
    kept = stream.recv_window + len(stream.conn.stream_buffers.get(stream.stream_id, b""))
    if 2 * (stream.target_recv_window - kept) >= stream.target_recv_window:
        await _give(stream)
