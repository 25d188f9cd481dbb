"""Holds the ring's incoming connections until the ring asks for them.

In a reduce, the participants form a ring and average their work. A neighbour may dial before this
node has received the roster, the ledger entry that makes them neighbours. So the inbox keeps
("parks") the socket under the key in the neighbour's hello. `wait_for_socket` gives the socket to
the reduce, or waits for it. A socket that the reduce does not take in time is closed. The inbox
does not know which data the sockets carry.

Both neighbours may try to open a stream, and they must use the same connection. So one of them, the
opener, decides. It *claims* a stream just before it sends its hello, and the inbox then refuses the
neighbour's hello for this stream. Conversely, nobody can claim a stream for which a hello of the
neighbour was accepted.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.errors import PeerLost, PeerTooSlow, RemoteProtocolError
from p2ptrain.ids import PeerId, RunId, is_digest

PURPOSE = "ring"
SECOND_PURPOSE = "ring-second"
"""The purpose in the hello of a neighbour that does not decide which connection is used. Nodes that
cannot decide, because they are older, do not accept it."""
PURPOSES = (PURPOSE, SECOND_PURPOSE)
COUNT_MAX = 1 << 40

GIVEN_UP_MAX = 64
"""Maximum number of given-up attempts that are remembered. An attempt must be remembered until the
last thread that waits for its sockets has started, long before 64 more attempts are given up."""

CLAIMED_MAX = 1024
"""Maximum number of claimed streams that are remembered: those of 62 neighbours with four streams
each, in four attempts."""

ACCEPTED_S = 10.0
"""Seconds after which an accepted hello no longer counts if its connection did not arrive."""


@dataclass(frozen=True, slots=True)
class RingKey:
    """Identifies one stream of one attempt at a reduce. `peer` dials it."""

    run: RunId
    step: int
    attempt: int
    stream: int
    peer: PeerId

    def to_hello(self, purpose: str = PURPOSE) -> dict[str, object]:
        """Return the hello that `peer` sends when it dials this stream."""
        named = asdict(self)
        del named["peer"]  # The connection proves which peer dials.
        return {"purpose": purpose} | named

    @classmethod
    def from_hello(cls, hello: Mapping[str, object], peer: PeerId) -> RingKey:
        """Return the key in the hello of `peer`. Raises RemoteProtocolError if the hello does not
        name a stream of a ring."""
        numbers = [hello.get(name) for name in ("step", "attempt", "stream")]
        if len(hello) != 5 or not is_digest(hello.get("run")):
            raise RemoteProtocolError("a ring's hello is malformed", peer=peer)
        if not all(type(number) is int and 0 <= number < COUNT_MAX for number in numbers):
            raise RemoteProtocolError(
                "a ring's hello has an invalid step, attempt or stream", peer=peer
            )
        step, attempt, stream = (int(str(number)) for number in numbers)
        return cls(RunId(str(hello["run"])), step, attempt, stream, peer)


class SocketWait:
    """Pass this handle to `RingInbox.wait_for_socket`, and end that call with `end_wait`."""

    def __init__(self) -> None:
        self.over = False


class RingInbox:
    """Parks sockets whose hello has the purpose "ring" or "ring-second". `handle` is the listener's
    handler for these purposes, and `refusal` decides which hellos it accepts. Thread-safe.

    At most `parked_max` sockets wait, and at most `parked_per_peer_max` of each peer. Further
    sockets are refused.
    """

    def __init__(
        self, *, parked_max: int = 256, parked_per_peer_max: int = 32, parked_s: float = 60.0
    ) -> None:
        self._parked_max = parked_max
        self._parked_per_peer_max = parked_per_peer_max
        self._parked_s = parked_s
        self._changed = threading.Condition()
        self._parked: dict[RingKey, PeerSocket] = {}
        self._wanted: dict[RingKey, bool] = {}
        """The keys that threads wait for in `wait_for_socket`. The value is False if a key was
        given up."""
        self._given_up: deque[tuple[RunId, int, int]] = deque(maxlen=GIVEN_UP_MAX)
        self._claimed: dict[RingKey, None] = {}
        """The streams for which this node has chosen another connection, oldest first."""
        self._accepted: dict[RingKey, float] = {}
        """For each accepted hello whose connection is not parked yet: when it no longer counts."""

    def __len__(self) -> int:
        return len(self._parked)

    def handle(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        """Park `connection`. Return when the reduce that took the connection has closed it, or
        after `parked_s` if no reduce took it.

        Raises:
            RemoteProtocolError: the hello is malformed, or too many sockets are parked.
        """
        key = RingKey.from_hello(hello, connection.peer)
        self._park(key, connection)
        connection.ended.wait(self._parked_s)
        with self._changed:
            if self._parked.get(key) is connection:
                del self._parked[key]
                return
        connection.ended.wait()

    def admit(self, key: RingKey, connection: PeerSocket) -> None:
        """Park a connection of an earlier reduce whose new hello has been answered. The caller has
        to call `withdraw` later, since no handler closes it. Raises RemoteProtocolError: too many
        sockets are parked."""
        self._park(key, connection)

    def withdraw(self, key: RingKey, connection: PeerSocket) -> None:
        """Close `connection` if it is still parked, because no reduce has taken it."""
        with self._changed:
            if self._parked.get(key) is not connection:
                return
            del self._parked[key]
        connection.close()

    def refusal(self, peer: PeerId, hello: Mapping[str, object]) -> str:
        """Return why the hello of `peer` is refused; "" if it is accepted. Raises
        RemoteProtocolError if it is malformed."""
        key, now = RingKey.from_hello(hello, peer), time.monotonic()
        with self._changed:
            if key in self._claimed:
                return "this stream is open already"
            if len(self._accepted) >= self._parked_max:
                self._accepted = {it: ends for it, ends in self._accepted.items() if ends > now}
            if len(self._accepted) < self._parked_max:
                self._accepted[key] = now + ACCEPTED_S
            return ""

    def claim(self, key: RingKey) -> bool:
        """Refuse further hellos for `key` until `release`. Return False, and do nothing, if such a
        hello was accepted and its connection is arriving or parked."""
        with self._changed:
            arriving = self._accepted.get(key, -math.inf) > time.monotonic()
            if key in self._parked or arriving:
                return False
            self._claimed[key] = None
            if len(self._claimed) > CLAIMED_MAX:
                del self._claimed[next(iter(self._claimed))]
            return True

    def release(self, key: RingKey) -> None:
        """Withdraw `claim`, because the other connection did not come about."""
        with self._changed:
            self._claimed.pop(key, None)

    def wait_for_socket(
        self, key: RingKey, *, deadline_s: float, wait: SocketWait | None = None
    ) -> PeerSocket:
        """Return the socket parked under `key`. The caller has to close it. Blocks until then, or
        until another thread calls `end_wait`.

        Raises:
            PeerTooSlow: the peer did not open the stream within `deadline_s`.
            PeerLost: the attempt has been given up (`give_up`), or the wait was ended.
        """
        ends, wait = time.monotonic() + deadline_s, wait or SocketWait()
        with self._changed:
            self._wanted[key] = (key.run, key.step, key.attempt) not in self._given_up
            try:
                while key not in self._parked or not self._wanted[key] or wait.over:
                    if not self._wanted[key] or wait.over:
                        raise PeerLost("this node gave up waiting for its stream", peer=key.peer)
                    if not self._changed.wait(ends - time.monotonic()):
                        raise PeerTooSlow("it did not open its stream in time", peer=key.peer)
                return self._parked.pop(key)
            finally:
                del self._wanted[key]

    def end_wait(self, wait: SocketWait) -> None:
        """End the current or future `wait_for_socket` that has this handle."""
        with self._changed:
            wait.over = True
            self._changed.notify_all()

    def give_up(self, *, run: RunId, step: int, attempt: int) -> None:
        """End every current and future `wait_for_socket` of this attempt, and close the attempt's
        parked sockets. Future calls end too, because a task may be cancelled before its thread
        has begun to wait."""
        with self._changed:
            self._given_up.append((run, step, attempt))
            for key in self._wanted:
                if (key.run, key.step, key.attempt) == (run, step, attempt):
                    self._wanted[key] = False
            stale = [
                key
                for key in self._parked
                if (key.run, key.step, key.attempt) == (run, step, attempt)
            ]
            dropped = [self._parked.pop(key) for key in stale]
            self._changed.notify_all()
        for connection in dropped:
            connection.close()

    def _park(self, key: RingKey, connection: PeerSocket) -> None:
        with self._changed:
            self._accepted.pop(key, None)
            replaced = self._parked.pop(key, None)
            of_peer = sum(other.peer == key.peer for other in self._parked)
            full = len(self._parked) >= self._parked_max or of_peer >= self._parked_per_peer_max
            if not full:
                self._parked[key] = connection
                self._changed.notify_all()
        if replaced is not None:
            replaced.close()
        if full:
            raise RemoteProtocolError("too many streams are already waiting", peer=key.peer)
