"""Learn the external address of a local port: a member that is called from there reports it.

    dialler    a hello with the purpose "observe"
    listener   one frame: the host and port from which the dialler seems to call; empty if the
               dialler has asked too often, or if too many dialogues are open
    both       keep the connection open, because NATs forget the mappings of closed connections

Every admitted peer may ask, because a newcomer needs the answer before it can become a member. All
peers that are not members share one limit. If too many connections are open, the peer with most of
them loses its oldest one, so that a few liars cannot use up all places.

Only members of the roster are asked; the caller checks this. A lying member gains little: we
announce an address that is not ours to the peer with which we want to punch a hole. That peer does
not call it unless another member claims to see us there; see `candidates`. Otherwise only that
connection fails, and the next attempt asks another member.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from p2ptrain.address_group import plain_host
from p2ptrain.dataplane.candidates import ExternalAddress
from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.local_port import LocalPort
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.dataplane.tls import dial
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import PeerError, PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import Allowance, FairAllowance

PURPOSE = "observe"
ANSWER_BYTES_MAX = 96
"""Maximum bytes of an answer: a host of 45 characters, a port, and the names of both fields."""

HOLD_S = 10.0
"""Seconds for which the listener keeps a connection open. An agreement and punching take six."""
HELD_MAX, HELD_PER_PEER_MAX, HELD_BY_VISITORS_MAX = 96, 32, 24
"""Maximum number of connections that are kept open, so that most of the listener's connections
remain free for data. A peer may observe STREAMS_MAX ports for each of four peers at once. Visitors
are peers that are not members; they need one connection for each source."""
ASKED_AT_ONCE, ASKED_PER_S = 64, 4.0
"""How many ports one peer may observe here: those of eight agreements at once, then those of two
neighbours with two streams each second. The reduces of a very small model are that frequent."""
ASKED_BY_VISITORS_AT_ONCE, ASKED_BY_VISITORS_PER_S = 32, 4.0
"""How many ports all visitors together may observe here."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A local port with its external address, and the connection that keeps the address valid.
    Close it after punching."""

    source: LocalPort
    seen: ExternalAddress
    connection: PeerSocket

    def close(self) -> None:
        self.connection.close()
        self.source.close()


def observe(
    credentials: Credentials,
    member: Endpoint,
    source: LocalPort,
    *,
    deadline_s: float,
    encrypted: bool = True,
    dialling: DialHandle | None = None,
) -> Observation:
    """Ask a member for the external address of `source`. This blocks, so call it in a thread. A
    port can ask each member only once, because the system remembers closed connections.

    Raises:
        PeerError, RemoteProtocolError: as for `dial`; also if the member does not want to answer.
    """
    connection = dial(
        credentials,
        member,
        {"purpose": PURPOSE},
        deadline_s=deadline_s,
        encrypted=encrypted,
        dialling=dialling,
        source=source,
    )
    try:
        answer = connection.receive_frame(ANSWER_BYTES_MAX)
        if not answer:
            raise PeerUnreachable("it has no time to observe our port", peer=member.peer)
        return Observation(source, decode_answer(answer), connection)
    except BaseException:
        connection.close()
        raise


def decode_answer(answer: bytes) -> ExternalAddress:
    """Return the address in a member's answer. Raises RemoteProtocolError if it is malformed."""
    return ExternalAddress.from_wire(unpack(answer, bytes_max=ANSWER_BYTES_MAX))


def _external(sock: PeerSocket) -> ExternalAddress:
    """Return the address from which the peer calls. Raises PeerLost, RemoteProtocolError."""
    host, port = sock.remote_address()
    return ExternalAddress.of(plain_host(host), port)


class ObserveServer:
    """A listener's handler for PURPOSE. It bounds how often a peer may ask, how many connections it
    keeps open, and for how long. `is_member` tells members from visitors. Thread-safe."""

    def __init__(
        self,
        *,
        is_member: Callable[[PeerId], bool] = lambda peer: True,
        hold_s: float = HOLD_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_member = is_member
        self._hold_s = hold_s
        self._now = now
        self._lock = threading.Lock()
        self._asked = Allowance(ASKED_AT_ONCE, ASKED_PER_S)
        self._asked_by_visitors = FairAllowance(ASKED_BY_VISITORS_AT_ONCE, ASKED_BY_VISITORS_PER_S)
        self._held: list[PeerSocket] = []
        """The connections that are kept open, oldest first."""

    def __call__(self, sock: PeerSocket, hello: Mapping[str, object]) -> None:
        """Answer, then wait until the peer closes the connection. Raises PeerError if the
        connection ends before the answer was sent, RemoteProtocolError if the peer calls from a
        port that it could not use for punching."""
        sock.set_deadline(self._hold_s)
        if not self._hold(sock):
            sock.send_frame(b"")
            return
        try:
            sock.send_frame(pack(_external(sock).to_wire()))
            with suppress(PeerError):
                sock.receive_into(bytearray(1))
        finally:
            with self._lock:
                if sock in self._held:
                    self._held.remove(sock)

    def _hold(self, sock: PeerSocket) -> bool:
        with self._lock:
            if not self._has_room(sock.peer):
                return False
            limit = self._asked if self._is_member(sock.peer) else self._asked_by_visitors
            if not limit.consume(sock.peer, 1, self._now()):
                return False
            if len(self._held) >= HELD_MAX:
                self._drop_one()
            self._held.append(sock)
            return True

    def _has_room(self, peer: PeerId) -> bool:
        """Return whether one more connection of `peer` may be kept open, perhaps instead of that of
        another peer. The caller holds the lock."""
        peers = [each.peer for each in self._held]
        own, visitors = peers.count(peer), sum(not self._is_member(each) for each in peers)
        if own >= HELD_PER_PEER_MAX:
            return False
        if not self._is_member(peer) and visitors >= HELD_BY_VISITORS_MAX:
            return False
        return len(peers) < HELD_MAX or max(Counter(peers).values()) > own + 1

    def _drop_one(self) -> None:
        """End the oldest connection of the peer with the most. The caller holds the lock."""
        ((most, _),) = Counter(each.peer for each in self._held).most_common(1)
        oldest = next(each for each in self._held if each.peer == most)
        self._held.remove(oldest)
        oldest.shutdown()
