"""Channels from libp2p's tasks to ours that never block libp2p.

A full feed drops its oldest value and counts the loss: a new heartbeat is worth more than an old
one. A full feed with several authors drops a value of the author with the most values.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

import trio

from p2ptrain.ids import PeerId

T = TypeVar("T")


class Feed(Generic[T]):
    """A queue of at most `size` values. Read them from `receiver`."""

    def __init__(self, size: int) -> None:
        self._sender, self.receiver = trio.open_memory_channel[T](size)
        self._oldest = self.receiver.clone()
        self.lost = 0

    def push(self, value: T) -> None:
        """Add `value`; if the feed is full, drop the oldest value."""
        try:
            self._sender.send_nowait(value)
        except trio.WouldBlock:
            self._oldest.receive_nowait()
            self.lost += 1
            self._sender.send_nowait(value)

    def close(self) -> None:
        """End the receiver's iteration."""
        self._oldest.close()
        self._sender.close()


class SharedFeed(trio.abc.ReceiveChannel[tuple[PeerId, T]]):
    """A queue of at most `size` values with their authors, and at most `per_author` of each
    author."""

    def __init__(self, size: int, per_author: int) -> None:
        assert 0 < per_author <= size
        self._size = size
        self._per_author = per_author
        self._waiting: list[tuple[PeerId, T]] = []
        self._of_author: Counter[PeerId] = Counter()
        self._arrivals = Feed[None](size)
        """One item for each waiting value."""
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, author: PeerId, value: T) -> None:
        """Add `value`. If its author has `per_author` values, drop the oldest of them. If the queue
        is full, drop the oldest value of the author with the most values."""
        loser = self._loser(author)
        if loser is None:
            self._arrivals.push(None)
        else:
            self._pop(next(at for at, (of, _) in enumerate(self._waiting) if of == loser))
            self.lost += 1
        self._waiting.append((author, value))
        self._of_author[author] += 1

    async def receive(self) -> tuple[PeerId, T]:
        await self._arrivals.receiver.receive()
        return self._pop(0)

    def receive_nowait(self) -> tuple[PeerId, T]:
        """Return the oldest value. Raises trio.WouldBlock if there is none."""
        self._arrivals.receiver.receive_nowait()
        return self._pop(0)

    async def aclose(self) -> None:
        self._arrivals.close()
        self._arrivals.receiver.close()

    def _loser(self, author: PeerId) -> PeerId | None:
        """Return the author that must lose a value before `author` adds one; None if there is
        room."""
        if self._of_author[author] >= self._per_author:
            return author
        if len(self._waiting) >= self._size:
            return max(self._of_author, key=self._of_author.__getitem__)
        return None

    def _pop(self, at: int) -> tuple[PeerId, T]:
        author, value = self._waiting.pop(at)
        self._of_author[author] -= 1
        if not self._of_author[author]:
            del self._of_author[author]
        return author, value
