"""A channel from libp2p's tasks to ours that never makes libp2p wait.

A full one loses its oldest value, because the newest heartbeat is worth more than an old one, and
counts what was lost.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Feed(Generic[T]):
    """At most `size` values wait in `.receiver`."""

    def __init__(self, size: int) -> None:
        self._sender, self.receiver = trio.open_memory_channel[T](size)
        self._oldest = self.receiver.clone()
        self.lost = 0

    def push(self, value: T) -> None:
        """Add `value`, if need be instead of the oldest one."""
        try:
            self._sender.send_nowait(value)
        except trio.WouldBlock:
            self._oldest.receive_nowait()
            self.lost += 1
            self._sender.send_nowait(value)

    def close(self) -> None:
        """Let the receiver come to its end."""
        self._oldest.close()
        self._sender.close()
