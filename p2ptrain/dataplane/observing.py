"""Learn the external address of a local port: a member that is called from there reports it.

    dialler    a hello with the purpose "observe"
    listener   one frame: the host and port from which the dialler seems to call; empty if the
               dialler has asked too often, or if too many dialogues are open
    both       keep the connection open, because NATs forget the mappings of closed connections

Only members of the roster are asked; the caller checks this. A lying member gains little: we
announce an address that is not ours to the peer with which we want to punch a hole. That peer does
not call it unless another member claims to see us there; see `candidates`. Otherwise only that
connection fails, and the next attempt asks another member.
"""

from __future__ import annotations

import threading
import time
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
from p2ptrain.rate_limit import Allowance

PURPOSE = "observe"
ANSWER_BYTES_MAX = 96
"""Maximum bytes of an answer: a host of 45 characters, a port, and the names of both fields."""

HOLD_S = 10.0
"""Seconds for which the listener keeps a connection open. An agreement and punching take six."""
HELD_MAX, HELD_PER_PEER_MAX = 96, 32
"""Maximum number of connections that are kept open, so that most of the listener's connections
remain free for data. A peer may observe STREAMS_MAX ports for each of four peers at once."""
ASKED_AT_ONCE, ASKED_PER_S = 64, 4.0
"""How many ports one peer may observe here: those of eight agreements at once, then those of two
neighbours with two streams each second. The reduces of a very small model are that frequent."""


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
    keeps open, and for how long. Thread-safe."""

    def __init__(
        self, *, hold_s: float = HOLD_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._hold_s = hold_s
        self._now = now
        self._lock = threading.Lock()
        self._asked = Allowance(ASKED_AT_ONCE, ASKED_PER_S)
        self._held: list[PeerId] = []
        """The peer of each connection that is kept open."""

    def __call__(self, sock: PeerSocket, hello: Mapping[str, object]) -> None:
        """Answer, then wait until the peer closes the connection. Raises PeerError if the
        connection ends before the answer was sent, RemoteProtocolError if the peer calls from a
        port that it could not use for punching."""
        sock.set_deadline(self._hold_s)
        if not self._hold(sock.peer):
            sock.send_frame(b"")
            return
        try:
            sock.send_frame(pack(_external(sock).to_wire()))
            with suppress(PeerError):
                sock.receive_into(bytearray(1))
        finally:
            with self._lock:
                self._held.remove(sock.peer)

    def _hold(self, peer: PeerId) -> bool:
        with self._lock:
            full = len(self._held) >= HELD_MAX or self._held.count(peer) >= HELD_PER_PEER_MAX
            if full or not self._asked.consume(peer, 1, self._now()):
                return False
            self._held.append(peer)
            return True
