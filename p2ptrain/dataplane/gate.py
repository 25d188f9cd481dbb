"""Admission of incoming connections: the listener's handshake, and the certificates it trusts.

A *guest* is a peer that is not admitted to the run, and may nevertheless use the purposes that the
node has opened to guests. Guests have their own limits on certificates and connections, so they
cannot take the place of an admitted peer.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from p2ptrain.dataplane.certificates import Credentials, peer_of_certificate
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.dataplane.tls import check_loadable, tls_context, tune
from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.errors import NotAuthorised, PeerLost, reason_of
from p2ptrain.eviction import most_dispensable
from p2ptrain.ids import PeerId

TRUSTED_MAX = 1024
"""Maximum number of certificates held at the same time: ten times the number of members that we
plan for. Beyond this, certificates of non-members are dropped first, oldest first."""

GUESTS_MAX = 32
"""Maximum number of guests whose certificates are held; the oldest is dropped first."""

GUEST_CONNECTIONS_MAX = 8
"""Maximum number of connections of all guests together, out of the 256 of a listener."""

GUEST_CONNECTIONS_EACH = 2


class Gate:
    """Turns an accepted socket into a PeerSocket, or refuses it. Thread-safe."""

    def __init__(
        self,
        credentials: Credentials,
        allowed: Callable[[PeerId], bool],
        trusted_max: int = TRUSTED_MAX,
    ) -> None:
        self._trusted_max = trusted_max
        self._credentials = credentials
        self._allowed = allowed
        self._members: frozenset[PeerId] = frozenset({credentials.peer})
        self._lock = threading.Lock()
        self._trusted: dict[PeerId, bytes] = {credentials.peer: credentials.certificate_der}
        self._holders = {credentials.certificate_der: credentials.peer}
        self._guests: dict[PeerId, bytes] = {}
        self._guest_purposes: frozenset[str] = frozenset()
        self._context: ssl.SSLContext | None = None

    def open_to_guests(self, purpose: str) -> None:
        """Let guests use `purpose` from now on. Its handler must tell guests from other peers."""
        self._guest_purposes |= {purpose}

    def invite(self, certificate_der: bytes) -> PeerId:
        """Accept the peer that made this certificate as a guest, and forget its earlier one.
        Return the peer. Raises RemoteProtocolError if no peer made the certificate."""
        peer = peer_of_certificate(certificate_der)
        check_loadable(certificate_der)
        with self._lock:
            self._guests.pop(peer, None)
            self._guests[peer] = certificate_der
            while len(self._guests) > GUESTS_MAX:
                del self._guests[next(iter(self._guests))]
            self._context = None
        return peer

    def is_guest(self, peer: PeerId) -> bool:
        """Return whether `peer`, which has a connection, is not admitted to the run."""
        return not self._allowed(peer)

    def guest_refusal(self, peer: PeerId, purpose: str) -> str:
        """Return why `peer` may not use `purpose`; "" if it may, or is not a guest."""
        if purpose in self._guest_purposes or not self.is_guest(peer):
            return ""
        return "you are not admitted to this run"

    def has_room(self, peer: PeerId, connected: list[PeerId]) -> bool:
        """Return whether `peer` may have one more connection, if it is a guest. `connected` lists
        the peers of all connections."""
        if not self.is_guest(peer):
            return True
        guests = [each for each in connected if self.is_guest(each)]
        few = guests.count(peer) < GUEST_CONNECTIONS_EACH
        return few and len(guests) < GUEST_CONNECTIONS_MAX

    def trust_certificate(self, certificate_der: bytes) -> PeerId:
        """See `Listener.trust_certificate`."""
        with self._lock:
            known = self._holders.get(certificate_der)
        if known is not None:  # Every heartbeat contains the certificate, and a check takes 0.3 ms.
            return known
        peer = peer_of_certificate(certificate_der)
        check_loadable(certificate_der)
        with self._lock:
            self._trusted.pop(peer, None)
            self._trusted[peer] = certificate_der
            while len(self._trusted) > self._trusted_max:
                del self._trusted[most_dispensable(self._trusted, self.is_member)]
            self._holders = {der: holder for holder, der in self._trusted.items()}
            self._context = None
        return peer

    def set_members(self, members: Iterable[PeerId]) -> None:
        """See `Listener.set_members`."""
        self._members = frozenset((self._credentials.peer, *members))

    def is_member(self, peer: PeerId) -> bool:
        return peer in self._members

    def authenticate(
        self,
        sock: socket.socket,
        *,
        deadline_s: float,
        received: bytes = b"",
        via: PeerId | None = None,
    ) -> PeerSocket:
        """Run the handshake on `sock`, which the gate owns from now on. See `Listener.adopt` for
        `received` and `via`.

        Raises:
            RemoteProtocolError, PeerLost: no valid handshake within `deadline_s`.
            NotAuthorised: the peer is not trusted or not allowed.
        """
        with ExitStack() as on_failure:
            on_failure.enter_context(sock)
            try:
                tune(sock)
                sock.settimeout(deadline_s)
                secured = TlsSocket(sock, self._current_context(), server=True, received=received)
                secured.do_handshake()
            except OSError as exc:
                raise PeerLost(f"a handshake failed: {reason_of(exc)}") from exc
            peer = self._recognise(secured)
            on_failure.pop_all()
        return PeerSocket(secured, peer, deadline_s=deadline_s, via=via)

    def _recognise(self, secured: TlsSocket) -> PeerId:
        shown = secured.certificate_der()
        peer = peer_of_certificate(shown)
        with self._lock:
            trusted = self._trusted.get(peer) == shown
            invited = self._guests.get(peer) == shown
        if not invited and not (trusted and self._allowed(peer)):
            raise NotAuthorised(f"{peer} may not connect to the data plane")
        return peer

    def _current_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                trusted = list({*self._trusted.values(), *self._guests.values()})
                self._context = tls_context(self._credentials, trusted, server=True)
            return self._context
