"""Connections to sources that are kept between fetches, and shared by fetches that run at the same
time.

A node behind a NAT needs about a second and many messages to connect with a source behind another
NAT. A node that starts makes several short fetches from the same sources. So a fetch gives back
each connection that it no longer needs, and the next fetch takes it. Only a few connections with
one source are opened at the same time; further fetches wait for one of these.

This module has no notion of how a connection is opened. All methods are thread-safe.
"""

from __future__ import annotations

import select
import threading
import time
from collections import Counter
from collections.abc import Callable

from p2ptrain.dataplane import PeerSocket, SecureSocket
from p2ptrain.errors import PeerTooSlow, PeerUnreachable
from p2ptrain.ids import PeerId

KEEP_S = 20.0
"""Seconds for which an unused connection is kept. It occupies a thread at the source."""

KEPT_PER_PEER_MAX, KEPT_MAX = 2, 64
"""Maximum number of unused connections with one source, and with all sources together."""

OPENING_MAX = 2
"""Maximum number of connections with one source that are being opened at the same time. With one, a
long fetch that comes first would delay the others by the time of a second opening."""

LOOK_S = 0.25
"""Maximum seconds until a thread that waits for a connection notices that its fetch is over."""


class KeptConnections:
    """Keeps unused connections between `begin` and `close`. At other times, each fetch opens and
    closes its own connections."""

    def __init__(
        self, *, keep_s: float = KEEP_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s = keep_s
        self._now = now
        self._changed = threading.Condition()
        self._kept: list[tuple[float, SecureSocket]] = []
        """The unused connections, the oldest first, with the time until which each is kept."""
        self._opening = Counter[PeerId]()
        self._keeps = False

    def __len__(self) -> int:
        with self._changed:
            return len(self._kept)

    def begin(self) -> None:
        """Keep unused connections from now on."""
        with self._changed:
            self._keeps = True

    def close(self) -> None:
        """Close all unused connections, and do not keep any from now on."""
        with self._changed:
            self._keeps = False
            unused, self._kept = self._kept, []
            self._changed.notify_all()
        for _, connection in unused:
            connection.close()

    def close_old(self) -> None:
        """Close the connections that have been unused for too long."""
        with self._changed:
            now = self._now()
            old = [each for each in self._kept if each[0] <= now]
            self._kept = [each for each in self._kept if each[0] > now]
        for _, connection in old:
            connection.close()

    def take(
        self,
        peer: PeerId,
        open_one: Callable[[], SecureSocket],
        *,
        wait_s: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> SecureSocket:
        """Return a connection with `peer`: an unused one, or a new one from `open_one`. Waits for
        at most `wait_s` seconds while others open connections with it, as long as `wanted()`.

        Raises:
            PeerTooSlow: all connections with `peer` remained in use.
            PeerUnreachable: the connection is no longer wanted.
            PeerError, RemoteProtocolError: as `open_one` does.
        """
        if (found := self._unused_or_turn(peer, wait_s, wanted)) is not None:
            return found
        try:
            return open_one()
        finally:
            with self._changed:
                self._opening[peer] -= 1
                self._changed.notify_all()

    def give_back(self, connection: SecureSocket) -> None:
        """Keep a connection without open requests for other fetches, or close it. Connections
        through relays are closed, because relays have few places."""
        with self._changed:
            of_peer = sum(each.peer == connection.peer for _, each in self._kept)
            room = of_peer < KEPT_PER_PEER_MAX and len(self._kept) < KEPT_MAX
            relayed = isinstance(connection, PeerSocket) and connection.via is not None
            keeps = self._keeps and room and not relayed and _is_quiet(connection)
            if keeps:
                self._kept.append((self._now() + self._keep_s, connection))
                self._changed.notify_all()
        if not keeps:
            connection.close()

    def _unused_or_turn(
        self, peer: PeerId, wait_s: float, wanted: Callable[[], bool]
    ) -> SecureSocket | None:
        """Return an unused connection; None if the caller has to open one, and is counted."""
        with self._changed:
            ends = self._now() + wait_s
            while wanted():
                if (found := self._unused(peer)) is not None:
                    return found
                if not self._keeps or self._opening[peer] < OPENING_MAX:
                    self._opening[peer] += 1
                    return None
                left_s = ends - self._now()
                if left_s <= 0:
                    raise PeerTooSlow("all connections with it are in use", peer=peer)
                self._changed.wait(min(left_s, LOOK_S))
        raise PeerUnreachable("this connection is no longer needed", peer=peer)

    def _unused(self, peer: PeerId) -> SecureSocket | None:
        """Return the newest unused connection with `peer` that the peer has not ended. The caller
        holds the lock."""
        for at in reversed(range(len(self._kept))):
            connection = self._kept[at][1]
            if connection.peer == peer:
                del self._kept[at]
                if _is_quiet(connection):
                    return connection
                connection.close()
        return None


def _is_quiet(connection: SecureSocket) -> bool:
    """Return whether the connection is open and has nothing to read. A source does not send unless
    it is asked."""
    descriptor = connection.fileno()
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(0)
