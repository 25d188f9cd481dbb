"""One connection, which sends and receives frames without blocking. It does not know their
meaning.
"""

from __future__ import annotations

from p2ptrain.dataplane import SecureSocket
from p2ptrain.ring.wire import HEADER_BYTES, Header, decode_header

_TOGETHER_BYTES = (1 << 14) - HEADER_BYTES
"""Maximum bytes of a body that are sent together with its header. The two fit into one TLS
record."""
_SLICE_BYTES = 1 << 17
"""Maximum bytes per send call. At 1 Mbit/s they take one second, so progress is noticed long before
the silence limit (8 s by default)."""


class Link:
    """One connection. Used by one thread, but any thread may read the counts."""

    def __init__(self, socket: SecureSocket) -> None:
        self.socket = socket
        self.sent_bytes = 0
        self.received_bytes = 0
        self._going: list[memoryview] = []
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._header_got = 0
        self._body_got = 0

    @property
    def busy(self) -> bool:
        """Whether a frame is being sent."""
        return bool(self._going)

    @property
    def begun(self) -> bool:
        """Whether part of a header has been received."""
        return self._header_got > 0

    def start(self, header: Header, body: bytes | memoryview = b"") -> None:
        """Start to send a frame. Then call `push` until the link is not busy."""
        assert not self._going
        whole = memoryview(body)
        self._going = [memoryview(header.encode() + whole[:_TOGETHER_BYTES])]
        if len(whole) > _TOGETHER_BYTES:
            self._going.append(whole[_TOGETHER_BYTES:])

    def push(self) -> int:
        """Send without blocking; return the number of bytes sent.

        Raises PeerLost.
        """
        went = 0
        while self._going:
            count = self.socket.send_some(self._going[0][:_SLICE_BYTES])
            if count == 0:
                break
            went += count
            self._going[0] = self._going[0][count:]
            if not self._going[0]:
                del self._going[0]
        self.sent_bytes += went
        return went

    def pull_header(self) -> Header | None:
        """Return the next frame's header if it has arrived completely, else None.

        Raises PeerLost, RemoteProtocolError.
        """
        got = self.socket.receive_some(self._header[self._header_got :])
        self.received_bytes += got
        self._header_got += got
        if self._header_got < HEADER_BYTES:
            return None
        self._header_got = 0
        self._body_got = 0
        return decode_header(bytes(self._header))

    def pull_body(self, place: memoryview) -> bool:
        """Receive the available bytes of a body into `place`; return whether the body is complete.

        Raises PeerLost.
        """
        got = self.socket.receive_some(place[self._body_got :])
        self.received_bytes += got
        self._body_got += got
        return self._body_got == len(place)
