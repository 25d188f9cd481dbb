"""A blocking frame channel over one end of a socketpair.

The trainer uses the channel between inner steps, and a thread of the node uses one too. (A trio
task needs only a socket and a `wire.FrameReader`, not this module.)

The channel waits with poll() and transfers with MSG_DONTWAIT, so that it works whether the socket
is in blocking mode or not. The mode is not ours to choose: trio makes its copy of the node's socket
non-blocking, and both copies share one open file, hence one mode.

This module does not know what the frames mean, or whether it runs in the node or in the trainer.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from p2ptrain.errors import RemoteProtocolError, TrainerError, reason_of
from p2ptrain.ipc.frames import Frame
from p2ptrain.ipc.wire import FrameReader, encode

ASK_EVERY_S = 1.0
"""Interval at which a waiting `send` calls its argument `meanwhile`."""

_RECEIVE_BYTES = 65_536


class ChannelClosed(TrainerError):
    """The other side is gone: its process ended, or it closed the socket."""

    default_code = "TRAINER-CHANNEL"


class Channel:
    """Sends and receives frames over a connected stream socket, which it does not own.

    One thread may send while another receives. Two threads must not send, or receive, at once.
    """

    def __init__(self, sock: socket.socket, ask_every_s: float = ASK_EVERY_S) -> None:
        self._socket = sock
        self._ask_every_s = ask_every_s
        self._reader = FrameReader()
        self._arrived: deque[Frame] = deque()
        self._unsent = bytearray()

    def send(
        self,
        frame: Frame,
        *,
        deadline_s: float = math.inf,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Send the whole frame, waiting until it fits into the socket's buffer. The buffer holds a
        few hundred small frames, but not a Train frame with the paths of 2,000 blocks.

        While there is no room, `meanwhile` is called every `ask_every_s`. It may raise an exception
        to end the wait; the rest of the frame is then sent before the next one.

        Raises ChannelClosed: the other side is gone, or did not read enough within `deadline_s`.
        """
        self._unsent += encode(frame)
        give_up_at = time.monotonic() + deadline_s
        while self._unsent:
            ask_at = time.monotonic() + self._ask_every_s
            if _wait(self._socket, select.POLLOUT, min(give_up_at, ask_at)):
                self._send_some(frame.kind)
            elif time.monotonic() >= give_up_at:
                raise ChannelClosed(
                    f"the other side did not accept a {frame.kind} frame within {deadline_s} s"
                )
            elif meanwhile is not None:
                meanwhile()

    def _send_some(self, kind: str) -> None:
        try:
            sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError as exc:
            raise ChannelClosed(f"a {kind} frame could not be sent: {reason_of(exc)}") from exc
        del self._unsent[:sent]

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        """Return the next frame, or None if no frame is complete within `timeout_s`. If `timeout_s`
        is None, wait without a limit.

        Raises:
            ChannelClosed: the other side is gone, and all its complete frames have been received.
            RemoteProtocolError: the other side sent something that is not a frame.
        """
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._arrived:
            if not _wait(self._socket, select.POLLIN, give_up_at):
                return None
            self._fill()
        return self._arrived.popleft()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as exc:
            raise ChannelClosed(f"the channel broke: {reason_of(exc)}") from exc
        if data:
            self._arrived.extend(self._reader.feed(data))
            return
        try:
            self._reader.end()
        except RemoteProtocolError as exc:
            raise ChannelClosed(f"the channel closed in the middle of a frame: {exc.what}") from exc
        raise ChannelClosed("the other side closed the channel")


def _wait(sock: socket.socket, events: int, give_up_at: float | None) -> bool:
    """Wait until `sock` is ready, and return whether it was ready before the monotonic time
    `give_up_at`. This uses poll(), because select() fails for file descriptors above 1023."""
    timeout_ms = None if give_up_at is None else max(0.0, give_up_at - time.monotonic()) * 1000
    poller = select.poll()
    try:
        poller.register(sock, events)
    except ValueError as exc:
        raise ChannelClosed("the channel was closed on this side") from exc
    return bool(poller.poll(timeout_ms))
