"""Mutual TLS 1.3 between peers that know each other's certificates beforehand. Also dials peers.

Each side trusts exactly the certificates that it was given. It compares the peer's certificate byte
by byte with the expected one, so a certificate that a trusted certificate has issued is not
accepted. After the handshake the dialler sends one frame, the hello, which names the purpose. The
listener answers with one frame, so that the dialler learns the reason for a refusal.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial

from p2ptrain.dataplane.certificates import Credentials, peer_of_certificate
from p2ptrain.dataplane.congestion import Congestion, prefer_bbr
from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.dataplane.endpoint import Endpoint
from p2ptrain.dataplane.local_port import LocalPort
from p2ptrain.dataplane.racing import Race
from p2ptrain.dataplane.sockets import PeerSocket, RelayFault
from p2ptrain.dataplane.tls_socket import TlsSocket
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import (
    PeerError,
    PeerLost,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
    reason_of,
)
from p2ptrain.ids import PeerId

HELLO_BYTES_MAX = 1 << 14
"""Maximum bytes of a hello, which names a run, a step and a purpose, and carries no data."""
REASON_CHARACTERS_MAX = 200

PROOF = "proof"
"""The purpose of a connection on which the listener only proves its identity; see `prove`."""


Wanted = Callable[[], bool]


def tls_context(
    credentials: Credentials, trusted_der: list[bytes], *, server: bool
) -> ssl.SSLContext:
    """Return a context that presents `credentials`, and accepts only the certificates in
    `trusted_der` and those that they have issued."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # no resumption: every connection proves its certificate
    for der in trusted_der:
        context.load_verify_locations(cadata=der)
    _load_key(context, credentials.pem)
    return context


def check_loadable(certificate_der: bytes) -> None:
    """Raise RemoteProtocolError if OpenSSL cannot load a certificate. A context with that
    certificate would fail for all peers."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate_der)
    except ssl.SSLError as exc:
        raise RemoteProtocolError(f"OpenSSL cannot load a certificate: {exc.reason}") from exc


def _load_key(context: ssl.SSLContext, pem: bytes) -> None:
    """Load the key into `context`. Python's ssl module reads keys only from files. Use a file in
    memory if the system has them, so that the key is not written to disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("key", os.MFD_CLOEXEC), "wb") as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile(prefix="p2ptrain-") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def tune(sock: socket.socket) -> Congestion:
    """Disable Nagle's algorithm, and use BBR if the kernel has it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return prefer_bbr(sock)


def dial(
    credentials: Credentials,
    endpoint: Endpoint,
    hello: Mapping[str, object],
    *,
    deadline_s: float,
    encrypted: bool = True,
    dialling: DialHandle | None = None,
    source: LocalPort | None = None,
    wanted: Wanted | None = None,
) -> PeerSocket:
    """Connect to `endpoint`, prove both identities, and wait until the listener accepts `hello`.
    This blocks, so call it in a thread. If the endpoint has several addresses, the first one at
    which the peer proves its identity is used (see `racing`).

    `hello["purpose"]` names the handler. `deadline_s` covers the dial and, until `set_deadline` is
    called, the use of the connection after it. Without `encrypted`, TLS ends when the hello has
    been answered; both ends must use the same setting. The dial ends early if another thread calls
    `dialling.give_up`. The connection comes from `source`, by default from any free port. `wanted`
    is called just before the hello is sent, and may end the dial by returning False.

    Raises:
        PeerUnreachable: nobody answers there, or the peer refuses us (with its reason).
        PeerTooSlow: connecting took longer than `deadline_s`.
        RemoteProtocolError: the listener is not `endpoint.peer`, or its answer is malformed.
    """
    ends = time.monotonic() + deadline_s
    check_owner(endpoint)
    secured = _secured(credentials, endpoint, ends, dialling or DialHandle(), source)
    return greet(secured, endpoint, hello, ends=ends, encrypted=encrypted, wanted=wanted)


def check_owner(endpoint: Endpoint) -> None:
    """Raise RemoteProtocolError if the certificate of `endpoint` belongs to a different peer."""
    if peer_of_certificate(endpoint.certificate_der) != endpoint.peer:
        raise RemoteProtocolError(
            "an endpoint's certificate belongs to another peer", peer=endpoint.peer
        )


def dial_over(
    secured: TlsSocket,
    endpoint: Endpoint,
    hello: Mapping[str, object],
    *,
    ends: float,
    encrypted: bool = True,
    wanted: Wanted | None = None,
) -> PeerSocket:
    """Do the rest of `dial` on a connection that belongs to this call from now on. `ends` is the
    monotonic time of the deadline. Raises what `dial` raises."""
    with ExitStack() as on_failure:
        on_failure.callback(secured.close)
        secured.settimeout(max(ends - time.monotonic(), 0.001))
        shake_hands(secured, endpoint)
        on_failure.pop_all()
    return greet(secured, endpoint, hello, ends=ends, encrypted=encrypted, wanted=wanted)


def greet(
    secured: TlsSocket,
    endpoint: Endpoint,
    hello: Mapping[str, object],
    *,
    ends: float,
    encrypted: bool,
    wanted: Wanted | None = None,
    via: PeerId | None = None,
) -> PeerSocket:
    """Send the hello on a connection on which the peer has proved its identity. The connection goes
    through the relay `via`, if there is one. Raises what `introduce` raises."""
    with ExitStack() as on_failure:
        on_failure.callback(secured.close)
        if wanted is not None and not wanted():
            raise PeerUnreachable("another connection is used instead", peer=endpoint.peer)
        left_s = max(ends - time.monotonic(), 0.0)
        connection = PeerSocket(secured, endpoint.peer, deadline_s=left_s, via=via)
        introduce(connection, hello)
        if not encrypted:
            connection.leave_encryption()
        on_failure.pop_all()
    return connection


def prove(
    credentials: Credentials,
    endpoint: Endpoint,
    *,
    deadline_s: float,
    dialling: DialHandle | None = None,
) -> None:
    """Connect to `endpoint`, let the peer there prove that it has the certificate, and close the
    connection. This blocks, so call it in a thread.

    The peer need not trust our certificate. If it does, it also sees that we connected, because our
    hello has the purpose PROOF.

    Raises:
        PeerUnreachable: nobody listens there.
        PeerTooSlow: nobody answered within `deadline_s`.
        RemoteProtocolError: a different peer or program answered.
    """
    ends = time.monotonic() + deadline_s
    check_owner(endpoint)
    secured = _secured(credentials, endpoint, ends, dialling or DialHandle(), None)
    connection = PeerSocket(secured, endpoint.peer, deadline_s=max(ends - time.monotonic(), 0.0))
    with closing(connection), suppress(PeerError, RemoteProtocolError):
        introduce(connection, {"purpose": PROOF})


def _secured(
    credentials: Credentials,
    endpoint: Endpoint,
    ends: float,
    dialling: DialHandle,
    source: LocalPort | None,
) -> TlsSocket:
    """Return a connection on which the peer has proved its identity. A connection from a `source`
    port tries the first address only, because a port is used once."""
    if not endpoint.others or source is not None:
        return _secured_at(credentials, endpoint, ends, source, dialling)
    tries = [
        partial(_secured_at, credentials, place, ends, None) for place in endpoint.each_place()
    ]
    return Race(endpoint.peer, tries, TlsSocket.close, dialling).run(ends)


def _secured_at(
    credentials: Credentials,
    endpoint: Endpoint,
    ends: float,
    source: LocalPort | None,
    dialling: DialHandle,
) -> TlsSocket:
    deadline_s = max(ends - time.monotonic(), 0.001)
    with ExitStack() as on_failure:
        sock = on_failure.enter_context(_connect(endpoint, deadline_s, dialling, source))
        tune(sock)
        context = tls_context(credentials, [endpoint.certificate_der], server=False)
        secured = TlsSocket(sock, context, server=False)
        secured.settimeout(max(ends - time.monotonic(), 0.001))
        shake_hands(secured, endpoint)
        on_failure.pop_all()
    return secured


def _connect(
    endpoint: Endpoint, deadline_s: float, dialling: DialHandle, source: LocalPort | None
) -> socket.socket:
    peer = endpoint.peer
    with ExitStack() as on_failure:
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM
            )[0]
            made = socket.socket(family, kind, protocol) if source is None else source.new_socket()
            sock = on_failure.enter_context(made)
            dialling.register(sock)
            sock.settimeout(deadline_s)
            sock.connect(where)
        except TimeoutError as exc:
            raise PeerTooSlow(f"no answer from {_where(endpoint)}", peer=peer) from exc
        except OSError as exc:
            raise PeerUnreachable(f"{_where(endpoint)}: {exc.strerror or exc}", peer=peer) from exc
        on_failure.pop_all()
    return sock


def shake_hands(secured: TlsSocket, endpoint: Endpoint) -> None:
    """Let the peer prove that it is `endpoint.peer`. Raises PeerTooSlow, PeerUnreachable or
    RemoteProtocolError."""
    peer = endpoint.peer
    try:
        secured.do_handshake()
    except TimeoutError as exc:
        raise PeerTooSlow(f"no TLS handshake from {_where(endpoint)}", peer=peer) from exc
    except ssl.SSLCertVerificationError as exc:
        raise RemoteProtocolError(
            f"{_where(endpoint)} did not present the certificate of {peer}", peer=peer
        ) from exc
    except OSError as exc:
        raise PeerUnreachable(f"no TLS at {_where(endpoint)}: {reason_of(exc)}", peer=peer) from exc
    if secured.certificate_der() != endpoint.certificate_der:
        raise RemoteProtocolError(
            f"{_where(endpoint)} did not present the expected certificate", peer=peer
        )


def introduce(sock: PeerSocket, hello: Mapping[str, object]) -> None:
    """Send our hello to a listener, and wait until it is accepted.

    Raises:
        PeerUnreachable: the listener refused us, our certificate or the purpose.
        RemoteProtocolError: its answer is malformed.
    """
    packed = pack(dict(hello))
    assert len(packed) <= HELLO_BYTES_MAX
    assert isinstance(hello.get("purpose"), str)
    try:
        sock.send_frame(packed)
        answer = sock.receive_frame(HELLO_BYTES_MAX)
    except RelayFault:
        raise
    except PeerLost as exc:
        # In TLS 1.3 the listener checks our certificate after our side of the handshake has ended.
        raise PeerUnreachable(f"refused: {exc.what}", peer=sock.peer) from exc
    try:
        given = fields(unpack(answer, bytes_max=HELLO_BYTES_MAX), accepted=bool, reason=str)
    except RemoteProtocolError as exc:
        raise RemoteProtocolError(
            f"its answer to our hello is malformed: {exc.what}", peer=sock.peer
        ) from exc
    if not given["accepted"]:
        reason = str(given["reason"])[:REASON_CHARACTERS_MAX]
        raise PeerUnreachable(f"refused: {reason}", peer=sock.peer)


def receive_hello(sock: PeerSocket) -> dict[str, object]:
    """Receive the dialler's hello, on the listening side. Raises PeerLost, PeerTooSlow, or
    RemoteProtocolError if the hello is not a map with a `purpose`."""
    hello = unpack(sock.receive_frame(HELLO_BYTES_MAX), bytes_max=HELLO_BYTES_MAX)
    if not isinstance(hello, dict) or not isinstance(hello.get("purpose"), str):
        raise RemoteProtocolError("a hello does not name a purpose", peer=sock.peer)
    return hello


def answer_hello(sock: PeerSocket, refusal: str = "") -> None:
    """Accept the dialler, or refuse it with a reason, on the listening side. Raises PeerLost or
    PeerTooSlow."""
    sock.send_frame(pack({"accepted": not refusal, "reason": refusal[:REASON_CHARACTERS_MAX]}))


def _where(endpoint: Endpoint) -> str:
    return f"{endpoint.host} port {endpoint.port}"
