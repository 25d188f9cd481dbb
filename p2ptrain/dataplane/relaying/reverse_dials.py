"""A reverse dial: a peer that this node cannot dial is asked to dial this node instead.

    client ── "meet me at the client, for this key" ──► server     over the control plane
    client ◄── hello: purpose "relay", with the client, the key ── server
    client ── joined ──► server
    client ── TLS, as the TLS client, and its hello ──► server     on the same socket

The server does what it does at any relay (`client.serve_through`), and its listener serves the
connection in the end. The client is its own relay: it uses the socket itself, and no bytes are
passed on. So the result is a direct connection.

A key is random and is used once, for one peer. This module does not know how the peer is asked.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.listener import Handler
from p2ptrain.dataplane.relaying.messages import (
    FetchKey,
    Refusal,
    Refused,
    RelayKey,
    RelayRequest,
    encode_answer,
)
from p2ptrain.dataplane.sockets import PeerSocket, ShutDownHere
from p2ptrain.errors import PeerTooSlow, PeerUnreachable
from p2ptrain.ids import PeerId

ANSWER_S = 2.0
"""Seconds in which the peer must receive the answer."""

LOOK_S = 0.1
"""Interval in seconds at which a waiting thread checks whether its caller has given up."""

EXPECTED_MAX = 256
"""Maximum number of calls that are expected at the same time: more than two fetches have lanes."""


class ExpectedCall:
    """The call of `peer` for one key. Thread-safe."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self._changed = threading.Condition()
        self._arrived: tuple[socket.socket, bytes] | None = None
        self._over = False

    def wait(self, *, deadline_s: float, dialling: DialHandle) -> tuple[socket.socket, bytes]:
        """Return the socket once the peer has called, and the bytes that were already read from it.
        The socket belongs to the caller, and `dialling` can shut it down. This blocks.

        Raises:
            PeerTooSlow: the peer does not call within `deadline_s`.
            ShutDownHere: `dialling.give_up` was called.
        """
        ends = time.monotonic() + deadline_s
        with self._changed:
            while self._arrived is None:
                if dialling.is_over:
                    raise ShutDownHere("this node gave up dialling", peer=self.peer)
                if time.monotonic() >= ends:
                    raise PeerTooSlow("it did not dial this node in time", peer=self.peer)
                self._changed.wait(LOOK_S)
            (sock, received), self._arrived = self._arrived, None
        try:
            dialling.register(sock)
        except OSError as exc:
            sock.close()
            raise ShutDownHere("this node gave up dialling", peer=self.peer) from exc
        return sock, received

    def arrive(self, sock: socket.socket, received: bytes) -> None:
        """Take the socket of the call. Only the first one is used."""
        with self._changed:
            if self._over:
                sock.close()
                return
            self._over, self._arrived = True, (sock, received)
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse a call from now on, and close the socket of one that nobody took."""
        with self._changed:
            self._over = True
            arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived[0].close()


class ReverseDials:
    """A listener's handler for the purpose of relays. It takes the calls that this node, `me`,
    expects. A relay, if there is one, gets all other requests. Thread-safe."""

    def __init__(
        self, me: PeerId, relay: Handler | None = None, *, expected_max: int = EXPECTED_MAX
    ) -> None:
        self._me = me
        self._expected_max = expected_max
        self._relay = relay
        self._lock = threading.Lock()
        self._expected: dict[RelayKey, ExpectedCall] = {}

    @contextmanager
    def expect(self, key: FetchKey, peer: PeerId) -> Iterator[ExpectedCall]:
        """Expect one call of `peer` for `key` during the `with` block. Raises PeerUnreachable: too
        many calls are expected already."""
        call = ExpectedCall(peer)
        with self._lock:
            assert key.dialler == self._me
            assert key not in self._expected
            if len(self._expected) >= self._expected_max:
                raise PeerUnreachable("this node waits for too many calls", peer=peer)
            self._expected[key] = call
        try:
            yield call
        finally:
            with self._lock:
                del self._expected[key]
            call.close()

    def __call__(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        """Serve one connection. Raises RemoteProtocolError: the hello is malformed. Raises
        PeerError: the connection ended."""
        request = RelayRequest.from_hello(hello, connection.peer)
        if request.other != self._me and self._relay is not None:
            self._relay(connection, hello)
            return
        with self._lock:
            call = self._expected.get(request.key)
        connection.set_deadline(ANSWER_S)
        if request.other != self._me or call is None or call.peer != connection.peer:
            ours = request.other == self._me
            why = "this node does not expect this call" if ours else "this node does not relay"
            connection.send_frame(encode_answer(Refused(Refusal.NOT_ALLOWED, why)))
            return
        connection.send_frame(encode_answer(None))
        call.arrive(*connection.take_clear())
