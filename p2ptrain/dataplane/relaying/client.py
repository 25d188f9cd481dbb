"""The two ends of a relayed connection: both dial the relay, and speak TLS with each other inside.

The connection to the relay is ordinary TLS, until the relay says that it has joined both ends. Then
both leave that TLS, and the inner TLS begins on the same sockets. Its first bytes may have arrived
together with the relay's answer. The result is an ordinary data connection, whose `via` names the
relay.

*Whose fault is it?* The relay can break, delay or change everything except what the inner TLS
protects. So every failure on the way raises a RelayFault, which names the relay, even if the other
peer may have caused it. Only the other peer's own answer, inside TLS, raises an error that names
that peer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.listener import Listener
from p2ptrain.dataplane.relaying.choice import turns
from p2ptrain.dataplane.relaying.messages import (
    ANSWER_BYTES_MAX,
    Refusal,
    RelayKey,
    RelayRequest,
    decode_answer,
)
from p2ptrain.dataplane.sockets import (
    PeerSocket,
    RelayFault,
    RelayLost,
    RelayTooSlow,
    ShutDownHere,
)
from p2ptrain.dataplane.tls import check_owner, dial, greet, shake_hands, tls_context
from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.errors import (
    NotAuthorised,
    PeerError,
    PeerTooSlow,
    PeerUnreachable,
    ProtocolError,
)

Result = TypeVar("Result")


class RelayUnreachable(RelayFault, PeerUnreachable):
    """This node cannot connect to the relay."""

    default_code = "RELAY-UNREACHABLE"


class RelayRefused(RelayFault, PeerUnreachable):
    """The relay does not join the two ends. `kind` says why. If it is ABSENT, the relay claims that
    the other end did not come, which only the relay knows."""

    default_code = "RELAY-REFUSED"

    def __init__(self, kind: Refusal, what: str, *, peer: str) -> None:
        super().__init__(what, peer=peer)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Route:
    """A way to `peer` through `relay`, for `key`. Both ends make it for each other."""

    relay: Endpoint
    peer: Endpoint
    key: RelayKey


def dial_through(
    credentials: Credentials,
    route: Route,
    hello: Mapping[str, object],
    *,
    deadline_s: float,
    join_s: float | None = None,
    encrypted: bool = True,
    dialling: DialHandle | None = None,
    wanted: Callable[[], bool] | None = None,
) -> PeerSocket:
    """Connect to `route.peer` through the relay, and return what `dial` would return. The peer
    calls `serve_through` at about the same time. This blocks, so call it in a thread;
    `dialling.give_up` ends it early. The relay gets `join_s` to join both ends, by default
    `deadline_s`, which limits everything. `wanted` is as for `dial`.

    Raises:
        RelayFault: the relay cannot be reached, refuses, breaks, stalls or changes bytes.
        PeerUnreachable, RemoteProtocolError: the peer itself refused us, or broke the protocol.
        ShutDownHere: `dialling.give_up` was called.
    """
    ends = time.monotonic() + deadline_s
    dialling = dialling or DialHandle()
    check_owner(route.peer)
    with _blaming_the_relay(route, dialling), ExitStack() as on_failure:
        sock, received = _joined(
            credentials, route, min(join_s or deadline_s, deadline_s), encrypted, dialling
        )
        on_failure.callback(sock.close)
        secured = _inner_tls(credentials, route.peer, sock, received, ends)
        on_failure.pop_all()
    via = route.relay.peer
    return greet(secured, route.peer, hello, ends=ends, encrypted=encrypted, wanted=wanted, via=via)


def greet_caller(
    credentials: Credentials,
    peer: Endpoint,
    sock: socket.socket,
    hello: Mapping[str, object],
    *,
    received: bytes = b"",
    deadline_s: float,
    encrypted: bool = True,
    wanted: Callable[[], bool] | None = None,
) -> PeerSocket:
    """Return what `dial` would return, over a socket that `peer` has opened by a reverse dial
    (`reverse_dials`). The peer calls `serve_through`, with this node as the relay. `received` are
    the bytes that were already read from `sock`, which is closed if this fails. `wanted` is as for
    `dial`. This blocks.

    Raises PeerError, RemoteProtocolError: as for `dial`.
    """
    ends = time.monotonic() + deadline_s
    with ExitStack() as on_failure:
        on_failure.callback(sock.close)
        check_owner(peer)
        secured = _inner_tls(credentials, peer, sock, received, ends)
        on_failure.pop_all()
    return greet(secured, peer, hello, ends=ends, encrypted=encrypted, wanted=wanted)


def _inner_tls(
    credentials: Credentials, peer: Endpoint, sock: socket.socket, received: bytes, ends: float
) -> TlsSocket:
    """Begin TLS with `peer` on `sock`, as the client. Raises PeerError, RemoteProtocolError."""
    context = tls_context(credentials, [peer.certificate_der], server=False)
    secured = TlsSocket(sock, context, server=False, received=received)
    secured.settimeout(max(ends - time.monotonic(), 0.001))
    shake_hands(secured, peer)
    return secured


def serve_through(
    credentials: Credentials,
    route: Route,
    listener: Listener,
    *,
    deadline_s: float,
    join_s: float | None = None,
    encrypted: bool = True,
    dialling: DialHandle | None = None,
) -> None:
    """Let `route.peer` connect to us through the relay. Return when its hello has been answered;
    the listener's handler serves the connection. The listener must trust the peer's certificate.
    If the peer is its own relay, this is a reverse dial, and the connection is direct. Otherwise as
    for `dial_through`.

    Raises:
        RelayFault: as for `dial_through`; also if the peer's handshake or hello failed.
        ShutDownHere: `dialling.give_up` was called.
    """
    ends = time.monotonic() + deadline_s
    dialling = dialling or DialHandle()
    with _blaming_the_relay(route, dialling):
        sock, received = _joined(
            credentials, route, min(join_s or deadline_s, deadline_s), encrypted, dialling
        )
        listener.adopt(
            sock,
            route.peer.peer,
            deadline_s=max(ends - time.monotonic(), 0.001),
            received=received,
            via=None if route.relay.peer == route.peer.peer else route.relay.peer,
            accepted=dialling.release,
        )


def first_that_works(
    routes: Sequence[Route],
    use: Callable[[Route, float, float], Result],
    *,
    deadline_s: float,
    dialling: DialHandle,
) -> Result:
    """Return the first result of `use(route, deadline_s, join_s)`, which calls `dial_through` or
    `serve_through`. The routes are tried in order; `choice.turns` explains the times.

    Raises:
        RelayFault: no relay worked; the last error, with the others as evidence.
        PeerError, ProtocolError: as `use` raised, if it is not a fault of the relay.
    """
    ends = time.monotonic() + deadline_s
    failures: list[RelayFault] = []
    for route, join_s in zip(routes, turns(deadline_s, len(routes)), strict=True):
        try:
            return use(route, max(ends - time.monotonic(), 0.001), join_s)
        except RelayFault as exc:
            failures.append(exc)
            if dialling.is_over or time.monotonic() >= ends:
                break
    if not failures:
        raise RelayUnreachable("no member offers to relay", peer="")
    *before, last = failures
    last.evidence = (*last.evidence, *(f"{each.peer}: {each.what}" for each in before))
    raise last


def _joined(
    credentials: Credentials,
    route: Route,
    deadline_s: float,
    encrypted: bool,
    dialling: DialHandle,
) -> tuple[socket.socket, bytes]:
    """Return the socket once the relay has joined both ends, and bytes that came with its answer.
    Raises PeerError, RemoteProtocolError."""
    relay = route.relay.peer
    request = RelayRequest(credentials.peer, route.peer.peer, route.key)
    connection = dial(
        credentials,
        route.relay,
        request.to_hello(),
        deadline_s=deadline_s,
        encrypted=encrypted,
        dialling=dialling,
    )
    with ExitStack() as on_failure:
        on_failure.callback(connection.close)
        refused = decode_answer(connection.receive_frame(ANSWER_BYTES_MAX))
        if refused is not None:
            raise RelayRefused(refused.kind, f"the relay refused: {refused.reason}", peer=relay)
        sock, received = connection.take_clear()
        on_failure.pop_all()
    try:
        dialling.register(sock)
    except OSError as exc:
        sock.close()
        raise ShutDownHere("this node gave up dialling", peer=relay) from exc
    return sock, received


@contextmanager
def _blaming_the_relay(route: Route, dialling: DialHandle) -> Iterator[None]:
    """Translate every failure inside the `with` block into a RelayFault, or into ShutDownHere if
    this node gave up."""
    relay = route.relay.peer
    try:
        yield
    except (PeerError, ProtocolError, NotAuthorised) as exc:
        if dialling.is_over:
            raise ShutDownHere("this node gave up dialling", peer=relay) from exc
        if isinstance(exc, RelayFault):
            raise
        fault: type[RelayFault] = RelayLost
        if isinstance(exc, PeerTooSlow):
            fault = RelayTooSlow
        elif isinstance(exc, PeerUnreachable) and exc.peer == relay:
            fault = RelayUnreachable
        raise fault(exc.what, peer=relay, evidence=exc.evidence) from exc
