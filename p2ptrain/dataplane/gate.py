"""Who may come in: the handshake of the listening side, and how many strangers may be in it.

A connection is a stranger until its handshake is done, so strangers are few and short-lived: when
too many wait, one is dropped, of those from where most come. It is the one that has waited longest,
for an honest handshake takes some milliseconds and a silent one for ever.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

from p2ptrain.address_group import site_of
from p2ptrain.dataplane.certificates import Credentials, peer_of_certificate
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.dataplane.tls import check_loadable, tls_context, tune
from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.errors import NotAuthorised, PeerLost
from p2ptrain.eviction import most_dispensable
from p2ptrain.ids import PeerId

TRUSTED_MAX = 1024
"""Certificates held at once, the eldest of who is no member going first: ten times the members
that we plan for."""


class Strangers:
    """Connections whose peer is not known yet, `limit` of them. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[object, tuple[socket.socket, str]] = {}
        """Each with where it comes from, the eldest first."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, token: object, sock: socket.socket, host: str) -> bool:
        """Add one, from the address `host`; True if another had to go for it."""
        with self._lock:
            crowded = len(self._waiting) >= self._limit
            if crowded:
                _shut(self._waiting.pop(self._least_wanted())[0])
            self._waiting[token] = (sock, site_of(host))
        return crowded

    def leave(self, token: object) -> None:
        with self._lock:
            self._waiting.pop(token, None)

    def shut_all(self) -> None:
        with self._lock:
            for sock, _ in self._waiting.values():
                _shut(sock)
            self._waiting.clear()

    def _least_wanted(self) -> object:
        """Who dials without end from one place drops its own connections, and nobody else's."""
        counts = Counter(site for _, site in self._waiting.values())
        most = max(counts.values())
        return next(token for token, (_, site) in self._waiting.items() if counts[site] == most)


class Gate:
    """Turns an accepted socket into a PeerSocket, or refuses it. Thread-safe."""

    def __init__(self, credentials: Credentials, allowed: Callable[[PeerId], bool]) -> None:
        self._credentials = credentials
        self._allowed = allowed
        self._members: frozenset[PeerId] = frozenset({credentials.peer})
        self._lock = threading.Lock()
        self._trusted: dict[PeerId, bytes] = {credentials.peer: credentials.certificate_der}
        self._holders = {credentials.certificate_der: credentials.peer}
        self._context: ssl.SSLContext | None = None

    def trust(self, certificate_der: bytes) -> PeerId:
        """Let the holder of this certificate come in, and forget the one its peer had before.

        Raises:
            RemoteProtocolError: it is not a peer's certificate.
        """
        with self._lock:
            known = self._holders.get(certificate_der)
        if known is not None:  # Every heartbeat repeats it, and a check takes a third of a ms.
            return known
        peer = peer_of_certificate(certificate_der)
        check_loadable(certificate_der)
        with self._lock:
            self._trusted.pop(peer, None)
            self._trusted[peer] = certificate_der
            while len(self._trusted) > TRUSTED_MAX:
                del self._trusted[most_dispensable(self._trusted, self.is_member)]
            self._holders = {der: holder for holder, der in self._trusted.items()}
            self._context = None
        return peer

    def know_members(self, members: Iterable[PeerId]) -> None:
        """Of all who are allowed, whom others must not crowd out."""
        self._members = frozenset((self._credentials.peer, *members))

    def is_member(self, peer: PeerId) -> bool:
        return peer in self._members

    def prove(
        self,
        sock: socket.socket,
        *,
        deadline_s: float,
    ) -> PeerSocket:
        """Run the handshake on `sock`, which belongs to the gate from now on.

        Raises:
            RemoteProtocolError, PeerLost: no valid handshake within `deadline_s`.
            NotAuthorised: a valid peer that is not trusted or not allowed.
        """
        with ExitStack() as on_failure:
            on_failure.enter_context(sock)
            try:
                tune(sock)
                sock.settimeout(deadline_s)
                secured = TlsSocket(sock, self._current_context(), server=True)
                secured.do_handshake()
            except OSError as exc:
                raise PeerLost(f"a handshake failed: {exc}") from exc
            peer = self._recognise(secured)
            on_failure.pop_all()
        return PeerSocket(secured, peer, deadline_s=deadline_s)

    def _recognise(self, secured: TlsSocket) -> PeerId:
        shown = secured.certificate_der()
        peer = peer_of_certificate(shown)
        with self._lock:
            trusted = self._trusted.get(peer) == shown
        if not trusted or not self._allowed(peer):
            raise NotAuthorised(f"{peer} may not connect to the data plane")
        return peer

    def _current_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                trusted = list(self._trusted.values())
                self._context = tls_context(self._credentials, trusted, server=True)
            return self._context


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
