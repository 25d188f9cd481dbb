"""The listening side of the data plane. It serves every connection within limits.

The first message of a connection, the hello, names its purpose. The handler for that purpose serves
the connection in a thread, which ends with the listener's `with` block at the latest.

A connection is a stranger until its handshake is done. Strangers are limited in number and time.
When there are too many strangers, the address group (one IPv4 address or a /64 of IPv6) with the
most strangers loses the connection that has waited longest. An honest handshake takes milliseconds,
so that connection is most likely from a silent peer, whose handshake would never end.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from p2ptrain.address_group import Arrivals, plain_host, site_of
from p2ptrain.dataplane.binding import bind
from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.gate import TRUSTED_MAX, Gate
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.dataplane.tls import answer_hello, receive_hello
from p2ptrain.errors import (
    NotAuthorised,
    P2PTrainError,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from p2ptrain.ids import PeerId
from p2ptrain.stranger_slots import StrangerSlots

Handler = Callable[[PeerSocket, Mapping[str, object]], None]
"""`handler(connection, hello)` serves one connection until it returns."""

Refusal = Callable[[PeerId, Mapping[str, object]], str]
"""`refusal(peer, hello)` returns why a hello is refused; "" if it is accepted. It may raise
RemoteProtocolError."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of a listener. `strangers_max` limits the connections before their handshake,
    `connections_max` those after it."""

    strangers_max: int = 64
    connections_max: int = 256
    per_peer_max: int = 48
    """Maximum number of connections of one peer: enough for one neighbour's ring and swarm streams,
    even while some of them are being replaced."""
    handshake_s: float = 8.0
    """Time limit in seconds, separately for the handshake and for the hello."""
    handler_s: float = 30.0
    """Initial deadline of a handler in seconds, until it sets its own."""
    leave_s: float = 5.0
    """Seconds that the end of the `with` block waits for the threads."""
    trusted_max: int = TRUSTED_MAX


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """Numbers of events since the start. Those that end in `_now` are current numbers instead."""

    accepted: int = 0
    served: int = 0
    refused_handshake: int = 0
    refused_peer: int = 0
    refused_hello: int = 0
    refused_full: int = 0
    made_room: int = 0
    evicted: int = 0
    handler_errors: int = 0
    strangers_now: int = 0
    connections_now: int = 0


def _never(peer: PeerId, hello: Mapping[str, object]) -> str:
    return ""


def _not_served(peer: PeerId, hello: Mapping[str, object]) -> str:
    return "this node does not serve this purpose"


class Listener:
    """Serves the data plane at `host`:`port` (0: any free port) while its `with` block lasts. A
    host of "" stands for all addresses of this machine, of IPv4 and, if it has IPv6, of IPv6.

    `allowed(peer)` is called for every connection, in that connection's thread. Without
    `encrypted`, TLS only proves the identities, and ends before a handler starts.

    Raises (on construction):
        ConfigError: the address cannot be bound.
    """

    def __init__(
        self,
        credentials: Credentials,
        host: str,
        port: int,
        *,
        allowed: Callable[[PeerId], bool],
        encrypted: bool = True,
        bounds: ListenerLimits | None = None,
    ) -> None:
        self._encrypted = encrypted
        self._bounds = bounds or ListenerLimits()
        self._gate = Gate(credentials, allowed, self._bounds.trusted_max)
        self.is_member = self._gate.is_member
        self._strangers = StrangerSlots(self._bounds.strangers_max)
        self._lock = threading.Lock()
        self._handlers: dict[str, tuple[Handler, Refusal]] = {}
        self._connections: set[PeerSocket] = set()
        self._threads: set[threading.Thread] = set()
        self._counts: Counter[str] = Counter()
        self._arrivals = Arrivals()
        self._closing = False
        self._socket = bind(host, port)
        self._wake, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name="dataplane-accept")

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the listener is bound to."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def trust_certificate(self, certificate_der: bytes) -> PeerId:
        """Admit the peer that made this certificate, and stop trusting the peer's earlier
        certificate. Return the peer. Raises RemoteProtocolError if no peer made the certificate."""
        return self._gate.trust_certificate(certificate_der)

    def invite(self, certificate_der: bytes) -> PeerId:
        """See `Gate.invite`."""
        return self._gate.invite(certificate_der)

    def open_to_guests(self, purpose: str) -> None:
        """See `Gate.open_to_guests`."""
        self._gate.open_to_guests(purpose)

    def set_members(self, members: Iterable[PeerId]) -> None:
        """Set the members: when a limit is reached, other peers are dropped before members."""
        self._gate.set_members(members)

    def handle(self, purpose: str, handler: Handler, refusal: Refusal = _never) -> None:
        """Let `handler(connection, hello)` serve `purpose` from now on. The connection is closed
        when the handler returns. A handler may raise P2PTrainError, which is counted. Any other
        exception is our own bug; it goes to `threading.excepthook` and ends only that
        connection. `refusal` may refuse a hello with a reason, before the handler is called."""
        with self._lock:
            self._handlers[purpose] = handler, refusal

    def adopt(
        self,
        sock: socket.socket,
        peer: PeerId,
        *,
        deadline_s: float,
        received: bytes = b"",
        via: PeerId | None = None,
        accepted: Callable[[], object] = lambda: None,
    ) -> None:
        """Serve `sock`, which this node has connected to `peer` itself, like an accepted
        connection. This blocks until the hello is answered, for `deadline_s` at most. The handler
        then runs in a thread of its own. `sock` belongs to the listener from now on. `received` are
        bytes that were already read from it, and `via` is the relay that it goes through. Once the
        hello has been answered, `accepted` is called, just before the handler runs.

        Raises:
            PeerError, RemoteProtocolError, NotAuthorised: it is not `peer`, which is trusted and
                allowed, or its hello is not accepted.
        """
        ends = time.monotonic() + deadline_s
        self._count("accepted")
        sock.setblocking(True)
        connection = self._gate.authenticate(
            sock, deadline_s=deadline_s, received=received, via=via
        )
        with ExitStack() as on_failure:
            on_failure.callback(self._leave, connection)
            if connection.peer != peer:
                raise RemoteProtocolError("another peer answered", peer=peer)
            connection.set_deadline(ends - time.monotonic())
            greeted = self._greet(connection) if self._enter(connection) else None
            if greeted is None:
                raise PeerLost("its hello was not accepted", peer=peer)
            thread = threading.Thread(
                target=self._serve_adopted,
                args=(connection, *greeted),
                name="dataplane",
                daemon=True,
            )
            with self._lock:
                self._threads.add(thread)
            accepted()
            thread.start()
            on_failure.pop_all()

    def drop(self, peer: PeerId) -> None:
        """End all connections from `peer`, which was removed from the run or is dead."""
        with self._lock:
            for connection in self._connections:
                if connection.peer == peer:
                    connection.shutdown()

    def hosts_of(self, peer: PeerId) -> frozenset[str]:
        """Return the addresses from which `peer` is connected now."""
        with self._lock:
            connections = [each for each in self._connections if each.peer == peer]
        hosts = set[str]()
        for each in connections:
            with suppress(PeerError):  # It may end at any time.
                hosts.add(plain_host(each.remote_address()[0]))
        return frozenset(hosts)

    def statistics(self) -> ListenerStatistics:
        with self._lock:
            return ListenerStatistics(
                **self._counts,
                strangers_now=len(self._strangers),
                connections_now=len(self._connections),
            )

    def arrivals(self) -> dict[str, float]:
        """Return when an admitted peer last connected from each site, by `time.monotonic`. Sites
        are those of `address_group`; only the newest ones are kept."""
        with self._lock:
            return self._arrivals.by_site()

    def __enter__(self) -> Listener:
        self._acceptor.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop listening, shut every connection down, and wait for the threads."""
        with self._lock:
            self._closing = True
            for connection in self._connections:
                connection.shutdown()
            threads = list(self._threads)
        self._strangers.take_all_away()
        self._wake.send(b"x")
        ends = time.monotonic() + self._bounds.leave_s
        for thread in (self._acceptor, *threads):
            thread.join(max(ends - time.monotonic(), 0))
        for sock in (self._socket, self._wake, self._woken):
            sock.close()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                selector.select()
                try:
                    sock, address = self._socket.accept()
                except BlockingIOError:
                    continue  # the listener is closing, or the dialler has already left
                except OSError:
                    self._pause(0.05)  # out of descriptors: wait until some are closed
                    continue
                self._start_serving(sock, str(address[0]))

    def _pause(self, seconds: float) -> None:
        """Wait. `__exit__` ends the wait early."""
        self._woken.settimeout(seconds)
        with suppress(OSError):
            self._woken.recv(1, socket.MSG_PEEK)

    def _start_serving(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(True)
        thread = threading.Thread(
            target=self._serve, args=(sock, host), name="dataplane", daemon=True
        )
        with self._lock:
            if self._closing:
                sock.close()
                return
            self._counts["accepted"] += 1
            shut = partial(_shut, sock)
            self._counts["evicted"] += self._strangers.take(thread, site_of(host), shut)
            self._threads.add(thread)
        thread.start()

    def _serve(self, sock: socket.socket, host: str) -> None:
        """Serve one connection from the address `host`, from its first byte to its last, in its own
        thread."""
        thread = threading.current_thread()
        try:
            connection = self._gate.authenticate(sock, deadline_s=self._bounds.handshake_s)
            with self._lock:
                if not self._gate.is_guest(connection.peer):
                    self._arrivals.note(plain_host(host), time.monotonic())
            self._serve_peer(connection)
        except NotAuthorised:
            self._count("refused_peer")
        except (RemoteProtocolError, PeerError):
            self._count("refused_handshake")
        finally:
            self._strangers.release(thread)
            with self._lock:
                self._threads.discard(thread)

    def _serve_peer(self, connection: PeerSocket) -> None:
        try:
            if not self._enter(connection):
                return
            self._strangers.release(threading.current_thread())
            accepted = self._greet(connection)
            if accepted is not None:
                self._run_handler(connection, *accepted)
        finally:
            self._leave(connection)

    def _serve_adopted(
        self, connection: PeerSocket, handler: Handler, hello: Mapping[str, object]
    ) -> None:
        try:
            self._run_handler(connection, handler, hello)
        finally:
            self._leave(connection)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _leave(self, connection: PeerSocket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _enter(self, connection: PeerSocket) -> bool:
        with self._lock:
            peers = [other.peer for other in self._connections]
            full = peers.count(connection.peer) >= self._bounds.per_peer_max
            full |= not self._gate.has_room(connection.peer, peers)
            if not full and len(peers) >= self._bounds.connections_max:
                full = not self._make_room(connection.peer)
            self._counts["refused_full"] += full
            if full or self._closing:
                return False
            self._connections.add(connection)
            return True

    def _make_room(self, peer: PeerId) -> bool:
        """If `peer` is a member, drop a connection of a non-member. Return whether a connection was
        dropped. The caller holds the lock."""
        if not self._gate.is_member(peer):
            return False
        others = (each for each in self._connections if not self._gate.is_member(each.peer))
        least_wanted = next(others, None)
        if least_wanted is None:
            return False
        least_wanted.shutdown()
        self._connections.discard(least_wanted)  # Its thread will notice the shutdown.
        self._counts["made_room"] += 1
        return True

    def _greet(self, connection: PeerSocket) -> tuple[Handler, Mapping[str, object]] | None:
        """Return the handler and the hello; None if the hello is invalid or has no handler."""
        try:
            hello, peer = receive_hello(connection), connection.peer
            with self._lock:
                handler, refusal = self._handlers.get(str(hello["purpose"]), (None, _not_served))
            if why := self._gate.guest_refusal(peer, str(hello["purpose"])) or refusal(peer, hello):
                handler = None
            answer_hello(connection, why)
            if not self._encrypted:
                connection.leave_encryption()
        except (RemoteProtocolError, PeerError):
            handler = None
        if handler is None:
            self._count("refused_hello")
            return None
        return handler, hello

    def _run_handler(
        self, connection: PeerSocket, handler: Handler, hello: Mapping[str, object]
    ) -> None:
        connection.set_deadline(self._bounds.handler_s)
        try:
            handler(connection, hello)
        except P2PTrainError:
            self._count("handler_errors")
        else:
            self._count("served")

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
