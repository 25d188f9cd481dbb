"""Request a few short chunks from one peer, over a connection that is open. Nothing is stored.

A fetch (`swarm.fetch`) uses all sources at once, with a thread for each, and stores what arrives.
That suits long blobs. A check of an average needs two short chunks that only one peer is sure to
have, and needs them for a moment only.
"""

from __future__ import annotations

import threading
import time

from p2ptrain.dataplane import SecureSocket, SendPriority, Uplink
from p2ptrain.ids import Digest
from p2ptrain.store import CHUNK_BYTES_MAX, checked
from p2ptrain.swarm.wire import receive_response, send_request

RATE_LOOK_S = 1.0
"""Maximum seconds until a request that waits for the rate limit looks again: the limit may
change."""


class OneSource:
    """Requests chunks over `connection`, one at a time. Use it in one thread, and `close` it. Any
    thread may call `end`. `downlink` limits the rate of arrival. A chunk may take `stall_s` for
    each slice of 64 KiB."""

    def __init__(self, connection: SecureSocket, downlink: Uplink | None, stall_s: float) -> None:
        self._connection = connection
        self._share = None if downlink is None else downlink.share(SendPriority.SWARM)
        self._stall_s = stall_s
        self._ended = threading.Event()
        self.received_bytes = 0
        """Bytes of the chunks that have arrived."""
        self.took_s = 0.0
        """Seconds from the requests to the arrival of the chunks."""

    def chunk(self, digest: Digest) -> bytes | None:
        """Return the chunk of this digest; None if the source does not have it.

        Raises:
            PeerError, RemoteProtocolError: the connection failed, or the source broke the protocol.
            ChunkCorrupt: the source sent other bytes.
        """
        begun_s = time.monotonic()
        self._connection.set_deadline(self._stall_s)
        send_request(self._connection, digest)
        view = receive_response(self._connection, bytearray(CHUNK_BYTES_MAX), self._stall_s)
        self.took_s += time.monotonic() - begun_s
        if view is None:
            return None
        self.received_bytes += len(view)
        self._keep_to_the_rate(len(view))
        return bytes(checked(view, digest).data)

    def _keep_to_the_rate(self, count: int) -> None:
        """Wait until the limit allows the `count` bytes that have just arrived, or until `end`."""
        if self._share is None:
            return
        ticket = self._share.request_ticket(count)
        while (wait_s := self._share.wait_s(ticket)) > 0:
            if self._ended.wait(min(wait_s, RATE_LOOK_S)):
                return

    def end(self) -> None:
        """Make a running call of `chunk` return soon. Its connection cannot be used again."""
        self._ended.set()
        self._connection.shutdown()

    def close(self) -> None:
        """Release the share of the limit. The connection stays open."""
        if self._share is not None:
            self._share.close()
