"""Connect two peers behind NATs: both call each other at the same time (TCP hole punching).

A NAT lets packets in only from addresses that a node behind it has called. So each end calls the
external address of the other's port, from the port that has the announced external address. It also
listens on that port. The first calls may be dropped or reset by a NAT; later calls pass, since the
other end's calls have opened its NAT in the meantime. There are three ways to succeed:

- The calls cross, and TCP's simultaneous open makes one connection of them.
- Our call arrives after the peer's NAT was opened, and the peer's listening socket takes it.
- The peer's call arrives first, and our listening socket takes it. Our own call then fails with
  EADDRNOTAVAIL, as the connection exists already.

Two ends can disagree on whether they are connected, since a NAT may forget a connection that a late
reset seemed to end. So a connection counts only when its hello has been answered. Until then, both
ends try again. The dialler sends the first message of TLS at once, and each end ignores a
connection until its first bytes arrive. Neither strangers who call the port and are silent, nor
connections that work only one way, can therefore block it.

Another module decides beforehand whom we call, and who may ask for it; see `punch_sessions`. A
stranger who can call our port while it is open gains what a stranger at the listener gains: a
failed handshake. The port takes calls only from the peer's host, which neighbours behind the same
NAT have too. After ROUNDS_MAX failed handshakes it is closed.
"""

from __future__ import annotations

import errno
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Generic, TypeVar

from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.listener import Listener
from p2ptrain.dataplane.local_port import LocalPort
from p2ptrain.dataplane.sockets import PeerSocket
from p2ptrain.dataplane.tls import Wanted, check_owner, dial_over, tls_context, tune
from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.errors import (
    NotAuthorised,
    P2PTrainError,
    PeerError,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
)

Result = TypeVar("Result")
Started = TypeVar("Started")

AGAIN_S = 0.03
"""Mean pause in seconds before a failed call is made again. A NAT's reset takes a round trip, so in
two seconds this makes about 30 calls. The pause is random: two ends that fail in step with each
other would otherwise continue to do so."""

ROUNDS_MAX = 8
"""Maximum number of handshakes for a stream. An honest pair needs one, rarely two."""

WAITING_MAX = 4
"""Maximum number of connections whose first bytes have not arrived."""


@dataclass(frozen=True, slots=True)
class PunchTimes:
    """`calls_s`: for how long new connections are made. `handshake_s`: the time limit of each
    handshake together with its hello. `silence_s`: how long an end waits for the first bytes
    of a connection; more than the longest round trip. Punching takes at most the sum."""

    calls_s: float = 2.0
    handshake_s: float = 2.0
    silence_s: float = 0.7


def punch_and_dial(
    credentials: Credentials,
    endpoint: Endpoint,
    hello: Mapping[str, object],
    source: LocalPort,
    *,
    times: PunchTimes | None = None,
    encrypted: bool = True,
    dialling: DialHandle | None = None,
    wanted: Wanted | None = None,
) -> PeerSocket:
    """Punch from `source` to `endpoint`, whose host and port are the external address of the peer's
    port. Return what `dial` would return; set its deadline. The peer calls `punch_and_serve` at the
    same time. This blocks, so call it in a thread; `dialling.give_up` ends it early. `wanted` is
    called just before a hello is sent; if it returns False, this raises PeerUnreachable.

    Raises:
        PeerTooSlow: no connection came about in time.
        PeerUnreachable: the peer refused us, or `dialling.give_up` was called.
        RemoteProtocolError: somebody else answered, or an answer was malformed.
    """
    check_owner(endpoint)
    context = tls_context(credentials, [endpoint.certificate_der], server=False)

    def start(sock: socket.socket) -> TlsSocket:
        tune(sock)
        secured = TlsSocket(sock, context, server=False)
        secured.start_handshake()
        return secured

    def prove(sock: socket.socket, secured: TlsSocket, deadline_s: float) -> PeerSocket:
        ends = time.monotonic() + deadline_s
        # A connection that fails must not occupy its pair of addresses (TIME_WAIT).
        _reset_when_closed(sock, True)
        proven = dial_over(secured, endpoint, hello, ends=ends, encrypted=encrypted, wanted=wanted)
        _reset_when_closed(sock, False)
        return proven

    return _punch(endpoint, source, start, prove, times or PunchTimes(), dialling or DialHandle())


def punch_and_serve(
    listener: Listener,
    endpoint: Endpoint,
    source: LocalPort,
    *,
    times: PunchTimes | None = None,
    dialling: DialHandle | None = None,
) -> None:
    """Punch from `source` to `endpoint` like `punch_and_dial`, as the end that receives the hello.
    The listener's handler serves the connection. Return when the hello has been answered. The
    listener must trust the certificate of `endpoint`. This blocks.

    Raises:
        PeerTooSlow, PeerUnreachable, RemoteProtocolError: as for `punch_and_dial`.
        PeerLost, NotAuthorised: the last handshake or hello failed.
    """

    def start(sock: socket.socket) -> None:
        """Wait for the dialler, which speaks first."""

    def prove(sock: socket.socket, started: None, deadline_s: float) -> None:
        listener.adopt(sock, endpoint.peer, deadline_s=deadline_s)

    _punch(endpoint, source, start, prove, times or PunchTimes(), dialling or DialHandle())


def _punch(
    endpoint: Endpoint,
    source: LocalPort,
    start: Callable[[socket.socket], Started],
    prove: Callable[[socket.socket, Started, float], Result],
    times: PunchTimes,
    dialling: DialHandle,
) -> Result:
    """Return the result of `prove` for the first connection for which it does not raise. `prove`
    gets the result of `start`, which is called as soon as a connection exists, and its deadline in
    seconds."""
    calls_end = time.monotonic() + times.calls_s
    ends = calls_end + times.silence_s + times.handshake_s
    where = f"{endpoint.host} port {endpoint.port}"
    fault: P2PTrainError = PeerTooSlow(f"no hole was punched to {where}", peer=endpoint.peer)
    try:
        with _Hole(source, endpoint, start, dialling, times.silence_s) as hole:
            for _ in range(ROUNDS_MAX):
                sock, started = hole.connection(calls_end)
                left_s = max(ends - time.monotonic(), 0.001)
                try:
                    return prove(sock, started, min(times.handshake_s, left_s))
                except (PeerError, RemoteProtocolError, NotAuthorised) as exc:
                    fault = exc
    except TimeoutError:
        raise fault from None
    except OSError as exc:
        what = f"punching to {where}: {exc.strerror or exc}"
        raise PeerUnreachable(what, peer=endpoint.peer) from exc
    raise fault


class _Hole(Generic[Started]):
    """Calls the peer from the local port, and takes the peer's calls, until one is connected."""

    def __init__(
        self,
        source: LocalPort,
        endpoint: Endpoint,
        start: Callable[[socket.socket], Started],
        dialling: DialHandle,
        silence_s: float,
    ) -> None:
        self._source = source
        self._there = endpoint.host, endpoint.port
        self._host = ip_address(endpoint.host)
        self._start = start
        self._dialling = dialling
        self._silence_s = silence_s
        self._call_at = 0.0
        self._calling: socket.socket | None = None
        self._made: socket.socket | None = None
        """The silent connection that our own call has made, if there is one."""
        self._silent: dict[socket.socket, tuple[float, Started]] = {}
        """For each connection whose first bytes have not arrived: when it is dropped, and the
        result of `start`."""
        self._spoken: tuple[socket.socket, Started] | None = None
        """The connection that `connection` is about to return."""
        self._stack = ExitStack()

    def __enter__(self) -> _Hole[Started]:
        """Raises OSError."""
        with ExitStack() as stack:
            stack.callback(self._close_all)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            listening = stack.enter_context(self._source.new_socket())
            listening.setblocking(False)
            listening.listen(WAITING_MAX)
            self._selector.register(listening, selectors.EVENT_READ, self._take_call)
            # `give_up` shuts one end of this pair down, which wakes the selector.
            self._wake, woken = map(stack.enter_context, socket.socketpair())
            self._selector.register(woken, selectors.EVENT_READ, self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def connection(self, calls_end: float) -> tuple[socket.socket, Started]:
        """Return the next connection whose first bytes have arrived, and the result of `start`.
        `give_up` then ends its use. After `calls_end`, a monotonic time, only existing connections
        count. Raises TimeoutError if there are none, and OSError after `give_up`."""
        self._dialling.register(self._wake)
        while (now := time.monotonic()) < calls_end or self._silent:
            self._drop_silent(now)
            may_call = self._calling is None and self._made is None and now < calls_end
            if may_call and now >= self._call_at:
                self._call()
            wakes = [until for until, _ in self._silent.values()]
            wakes += [self._call_at] if may_call else []
            wakes += [calls_end] if now < calls_end else []
            for key, _ in self._selector.select(max(min(wakes, default=now) - now, 0.0)):
                key.data(key.fileobj)
            if self._spoken is not None:
                return self._handed_over()
        raise TimeoutError

    def _call(self) -> None:
        self._call_at = time.monotonic() + AGAIN_S * random.uniform(0.5, 1.5)
        sock = self._source.new_socket()
        sock.setblocking(False)
        if sock.connect_ex(self._there) in (0, errno.EINPROGRESS):
            self._calling = sock
            self._selector.register(sock, selectors.EVENT_WRITE, self._called)
        else:  # With EADDRNOTAVAIL, the peer's call has reached our listening socket.
            sock.close()

    def _called(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self._calling = None
        self._call_at = time.monotonic() + AGAIN_S * random.uniform(0.5, 1.5)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            sock.close()
        else:
            self._made = sock
            self._arrived(sock)

    def _take_call(self, listening: socket.socket) -> None:
        try:
            sock, address = listening.accept()
        except OSError:
            return  # The caller has already left.
        if ip_address(address[0]) != self._host:
            sock.close()
            return
        sock.setblocking(False)
        self._arrived(sock)

    def _arrived(self, sock: socket.socket) -> None:
        if len(self._silent) >= WAITING_MAX:
            self._drop(next(iter(self._silent)))
        self._selector.register(sock, selectors.EVENT_READ, self._spoke)
        try:
            started = self._start(sock)
        except OSError:
            self._selector.unregister(sock)
            self._made = None if sock is self._made else self._made
            sock.close()
        else:
            self._silent[sock] = time.monotonic() + self._silence_s, started

    def _spoke(self, sock: socket.socket) -> None:
        if self._spoken is None:  # Another one stays registered for the next round.
            self._spoken = sock, self._forget(sock)

    def _stop(self, woken: socket.socket) -> None:
        raise ConnectionAbortedError("this node gave up dialling")

    def _handed_over(self) -> tuple[socket.socket, Started]:
        assert self._spoken is not None
        (sock, started), self._spoken = self._spoken, None
        sock.setblocking(True)
        try:
            self._dialling.register(sock)
        except OSError:
            sock.close()
            raise
        return sock, started

    def _drop_silent(self, now: float) -> None:
        for sock in [each for each, (until, _) in self._silent.items() if now >= until]:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        _reset_when_closed(sock, True)
        sock.close()

    def _forget(self, sock: socket.socket) -> Started:
        self._selector.unregister(sock)
        if sock is self._made:
            self._made = None
        return self._silent.pop(sock)[1]

    def _close_all(self) -> None:
        spoken = self._spoken[0] if self._spoken is not None else None
        for sock in (self._calling, spoken, *self._silent):
            if sock is not None:
                sock.close()


def _reset_when_closed(sock: socket.socket, on: bool) -> None:
    """Let `close` reset the connection and free its pair of addresses at once; or not."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, 0))
