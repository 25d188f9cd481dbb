"""A listener serves only trusted and allowed peers, tells a refused peer the reason, and survives
whatever a connection sends."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from p2ptrain.address_group import site_of
from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    ListenerLimits,
    PeerSocket,
    RingInbox,
    RingKey,
    dial,
)
from p2ptrain.dataplane.binding import try_listening
from p2ptrain.dataplane.listener import ListenerStatistics
from p2ptrain.dataplane.tls import tls_context
from p2ptrain.errors import (
    ConfigError,
    PeerError,
    PeerLost,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId

from .conftest import (
    DEADLINE_S,
    HANDSHAKE,
    SHORT_S,
    Echo,
    ListenerFactory,
    certificate_in_the_name_of,
    connect,
    dripping,
    eventually,
    identity,
    in_time,
    named,
)

Background = Callable[[Callable[[], object]], Callable[[], object]]
ECHO = {"purpose": "echo"}


def works(client: Credentials, endpoint: Endpoint) -> bool:
    """Return whether the listener at `endpoint` serves `client`."""
    connection = connect(client, endpoint, ECHO)
    connection.send_frame(b"still there?")
    answer = connection.receive_frame()
    connection.close()
    return answer == b"still there?"


def works_in_the_end(client: Credentials, endpoint: Endpoint) -> bool:
    """Try `works` until it succeeds. Use this if the listener has short time limits, which an
    honest peer can exceed on a busy machine."""

    def works_now() -> bool:
        with suppress(PeerError):
            return works(client, endpoint)
        return False

    eventually(works_now)
    return True


def own_hosts() -> list[str]:
    """Return the loopback addresses of IPv4 and, if this machine has IPv6, of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


def says_after_its_handshake(
    client: Credentials, listener: Listener, endpoint: Endpoint, words: bytes
) -> None:
    """Connect and send `words` in place of a hello, repeatedly until the listener refuses a hello.
    On a busy machine, the first connections may end earlier, because their handshake takes too
    long."""
    context = tls_context(client, [endpoint.certificate_der], server=False)
    while not listener.statistics().refused_hello:
        with (
            suppress(OSError),
            socket.create_connection(listener.address, timeout=DEADLINE_S) as raw,
            context.wrap_socket(raw) as secured,
        ):
            secured.sendall(words)
            assert secured.recv(1) == b""


def test_trusted_peer_is_served(
    client: Credentials, listening: ListenerFactory, echo: Echo
) -> None:
    listener, endpoint = listening()
    connection = connect(client, endpoint, {"purpose": "echo", "more": [1, b"2"]})
    connection.send_frame(b"hello")
    assert connection.receive_frame() == b"hello"
    assert connection.peer == endpoint.peer
    assert echo.served == [(client.peer, {"purpose": "echo", "more": [1, b"2"]})]
    assert listener.statistics().connections_now == 1
    connection.close()
    eventually(lambda: listener.statistics().connections_now == 0)


def test_listener_without_a_host_serves_both_versions_of_ip(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(host="")
    assert endpoint.host == ("::" if own_hosts()[1:] else "0.0.0.0")
    for host in own_hosts():
        assert works(client, replace(endpoint, host=host))
    with pytest.raises(ConfigError, match="is in use"):
        try_listening("", endpoint.port)
    assert set(listener.arrivals()) == {site_of(host) for host in own_hosts()}


def test_listener_with_a_host_serves_only_that_version_of_ip(
    client: Credentials, listening: ListenerFactory
) -> None:
    _, endpoint = listening(host="0.0.0.0")
    assert works(client, replace(endpoint, host="127.0.0.1"))
    for host in own_hosts()[1:]:
        with pytest.raises(PeerUnreachable):
            works(client, replace(endpoint, host=host))


def test_both_ends_speak_tls_1_3(client: Credentials, listening: ListenerFactory) -> None:
    _, endpoint = listening()
    connection = connect(client, endpoint, ECHO)
    connection.close()
    ours = tls_context(client, [endpoint.certificate_der], server=False)
    assert ours.minimum_version is ssl.TLSVersion.TLSv1_3
    with (
        socket.create_connection((endpoint.host, endpoint.port), timeout=DEADLINE_S) as raw,
        ours.wrap_socket(raw) as secured,
    ):
        assert secured.version() == "TLSv1.3"


def test_unknown_certificate_is_refused(
    client: Credentials, stranger: Credentials, listening: ListenerFactory, echo: Echo
) -> None:
    listener, endpoint = listening()
    with pytest.raises(PeerUnreachable, match="refused"):
        connect(stranger, endpoint, ECHO)
    eventually(lambda: listener.statistics().refused_handshake == 1)
    assert echo.served == []
    assert works(client, endpoint)


def test_trusted_peer_that_is_not_allowed_is_refused(
    client: Credentials, listening: ListenerFactory, echo: Echo
) -> None:
    listener, endpoint = listening(lambda peer: False)
    with pytest.raises(PeerUnreachable, match="refused"):
        connect(client, endpoint, ECHO)
    eventually(lambda: listener.statistics().refused_peer == 1)
    assert echo.served == []


def test_restarted_peer_replaces_its_certificate(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening()
    again = Credentials.create(Identity.from_seed((2).to_bytes(32, "big")))
    assert again.peer == client.peer
    assert listener.trust_certificate(again.certificate_der) == client.peer
    assert works(again, endpoint)
    with pytest.raises(PeerUnreachable):
        connect(client, endpoint, ECHO)


def test_trusted_peer_cannot_issue_certificates_for_others(
    server: Credentials, client: Credentials, listening: ListenerFactory, echo: Echo
) -> None:
    """OpenSSL accepts any certificate that a trusted certificate has signed. So the listener itself
    compares the certificate with the trusted one."""
    _, endpoint = listening()
    issuer = x509.load_der_x509_certificate(client.certificate_der)
    issuer_key = serialization.load_pem_private_key(client.pem, None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server.peer)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(9)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(issuer_key, hashes.SHA256())  # type: ignore[arg-type]
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = secret + leaf.public_bytes(serialization.Encoding.PEM)
    der = leaf.public_bytes(serialization.Encoding.DER)
    with pytest.raises(PeerUnreachable):
        connect(Credentials(client.peer, der, pem), endpoint, ECHO)
    assert echo.served == []


def test_certificate_in_another_peers_name_does_not_lock_that_peer_out(
    listening: ListenerFactory,
) -> None:
    """OpenSSL looks up an issuer by name, and tries only one certificate of that name."""
    listener, endpoint = listening()
    victim = Credentials.create(identity(4))
    name = named(victim.peer)
    with suppress(RemoteProtocolError):
        listener.trust_certificate(certificate_in_the_name_of(identity(3), name, name))
    listener.trust_certificate(victim.certificate_der)
    assert works(victim, endpoint)


def test_certificate_without_a_valid_peer_identity_is_not_trusted(
    listening: ListenerFactory,
) -> None:
    listener, _ = listening()
    with pytest.raises(RemoteProtocolError):
        listener.trust_certificate(b"\x30\x03\x02\x01\x01")


def test_purpose_that_is_not_served_is_refused_with_a_reason(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening()
    with pytest.raises(PeerUnreachable, match="does not serve this purpose"):
        connect(client, endpoint, {"purpose": "mining"})
    eventually(lambda: listener.statistics().refused_hello == 1)
    assert works(client, endpoint)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x03abc",
        b"\x00\x00\x00\x01\x80",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x0a\x81\xa7purpose",
        b"\x00\x00\x00\x0a\x81\xa7purpose\x07",
        b"\x00\x00",
    ],
    ids=["no msgpack", "no purpose", "4 GiB announced", "cut short", "purpose 7", "half a length"],
)
def test_garbage_hello_is_dropped(
    client: Credentials, listening: ListenerFactory, garbage: bytes
) -> None:
    listener, endpoint = listening(handshake_s=0.3)
    says_after_its_handshake(client, listener, endpoint, garbage)
    assert works_in_the_end(client, endpoint)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x13/multistream/1.0.0\n", b"\x16\x03\x01\xff\xff", bytes(5000)],
    ids=["http", "libp2p", "huge client hello", "zeros"],
)
def test_connection_that_does_not_speak_tls_is_dropped(
    client: Credentials, listening: ListenerFactory, garbage: bytes
) -> None:
    listener, endpoint = listening(handshake_s=0.3)
    with socket.create_connection(listener.address, timeout=DEADLINE_S) as raw:
        raw.sendall(garbage)
        eventually(lambda: listener.statistics().refused_handshake == 1)
    assert works_in_the_end(client, endpoint)


def test_silent_connection_is_dropped_in_time(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(handshake_s=0.1)
    with socket.create_connection(listener.address, timeout=DEADLINE_S) as raw:
        assert raw.recv(1) == b""
    eventually(lambda: listener.statistics().strangers_now == 0)
    assert works_in_the_end(client, endpoint)


def test_connection_that_sends_byte_by_byte_is_dropped_in_time(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(handshake_s=SHORT_S)
    with (
        socket.create_connection(listener.address, timeout=DEADLINE_S) as raw,
        dripping(raw, HANDSHAKE),
        in_time(),
    ):
        eventually(lambda: listener.statistics().refused_handshake == 1)
    eventually(lambda: listener.statistics().strangers_now == 0)
    assert works_in_the_end(client, endpoint)


def test_peer_without_a_hello_is_dropped_in_time(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(handshake_s=0.2)
    says_after_its_handshake(client, listener, endpoint, b"")
    eventually(lambda: listener.statistics().connections_now == 0)
    assert works_in_the_end(client, endpoint)


def test_silent_strangers_make_room_for_an_honest_peer(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(strangers_max=8, handshake_s=30)
    silent = [socket.create_connection(listener.address, timeout=DEADLINE_S) for _ in range(20)]
    assert works(client, endpoint)
    eventually(lambda: listener.statistics().evicted >= 12)
    assert listener.statistics().strangers_now <= 8
    for raw in silent:
        raw.close()


def test_repeated_dials_do_not_drop_another_peers_handshake(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(strangers_max=8, handshake_s=DEADLINE_S)
    context = tls_context(client, [endpoint.certificate_der], server=False)
    with (
        socket.create_connection(listener.address, DEADLINE_S) as honest,
        ExitStack() as crowd,
    ):
        eventually(lambda: listener.statistics().strangers_now == 1)
        for _ in range(20):
            dialled = socket.create_connection(listener.address, DEADLINE_S, ("127.0.0.2", 0))
            crowd.enter_context(dialled)
        eventually(lambda: listener.statistics().evicted == 13)
        with context.wrap_socket(honest):
            expected = ListenerStatistics(
                accepted=21,
                refused_handshake=13,
                evicted=13,
                strangers_now=7,
                connections_now=1,
            )
            eventually(lambda: listener.statistics() == expected)


def test_number_of_connections_of_one_peer_is_bounded(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(per_peer_max=3)
    held = [connect(client, endpoint, ECHO) for _ in range(3)]
    with pytest.raises(PeerUnreachable):
        connect(client, endpoint, ECHO)
    eventually(lambda: listener.statistics().refused_full == 1)
    held.pop().close()
    eventually(lambda: listener.statistics().connections_now == 2)
    assert works(client, endpoint)
    for connection in held:
        connection.close()


def test_total_number_of_connections_is_bounded(
    client: Credentials, stranger: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(connections_max=2)
    listener.trust_certificate(stranger.certificate_der)
    held = [connect(one, endpoint, ECHO) for one in (client, stranger)]
    with pytest.raises(PeerUnreachable):
        connect(client, endpoint, ECHO)
    for connection in held:
        connection.close()


def test_each_new_member_replaces_a_different_non_member(
    client: Credentials, stranger: Credentials, listening: ListenerFactory
) -> None:
    """A connection that was shut down no longer counts, even if its handler has not ended."""
    listener, endpoint = listening(connections_max=2)
    listener.trust_certificate(stranger.certificate_der)
    listener.set_members([client.peer])
    entered, end = threading.Semaphore(0), threading.Event()

    def stays(connection: PeerSocket, hello: Mapping[str, object]) -> None:
        entered.release()
        end.wait(DEADLINE_S)

    listener.handle("stays", stays)
    held = []
    for who in (stranger, stranger, client, client):
        held.append(connect(who, endpoint, {"purpose": "stays"}))
        assert entered.acquire(timeout=DEADLINE_S)
    statistics = listener.statistics()
    end.set()
    assert (statistics.connections_now, statistics.made_room) == (2, 2)
    eventually(lambda: listener.statistics().connections_now == 0)
    assert listener.statistics().served == 4
    for connection in held:
        connection.close()


def test_members_replace_non_members_when_the_listener_is_full(
    client: Credentials, stranger: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(connections_max=2)
    listener.trust_certificate(stranger.certificate_der)
    listener.set_members([client.peer])
    held = [connect(stranger, endpoint, ECHO) for _ in range(2)]
    members = [connect(client, endpoint, ECHO) for _ in range(2)]
    assert listener.statistics().made_room == 2
    for connection in held:
        with pytest.raises(PeerLost):
            connection.receive_frame()
    for refused in (stranger, client):
        with pytest.raises(PeerUnreachable):
            connect(refused, endpoint, ECHO)
    assert listener.statistics().connections_now == 2
    for connection in [*held, *members]:
        connection.close()


def test_members_certificate_is_kept_when_many_others_arrive(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening(trusted_max=3)
    listener.set_members([client.peer])
    others = [Credentials.create(identity(number)) for number in range(50, 55)]
    for other in others:
        listener.trust_certificate(other.certificate_der)
    assert works(client, endpoint)
    assert [is_known(other, endpoint) for other in others] == [False] * 4 + [True]


def test_newest_certificates_are_kept(listening: ListenerFactory) -> None:
    listener, endpoint = listening(trusted_max=3)  # one of the three is the listener's own
    a, b, c = (Credentials.create(identity(number)) for number in (50, 51, 52))
    a_again = Credentials.create(identity(50))
    for each in (a, b, a_again, c):
        listener.trust_certificate(each.certificate_der)
    assert [is_known(each, endpoint) for each in (a, b, a_again, c)] == [False, False, True, True]


def is_known(peer: Credentials, endpoint: Endpoint) -> bool:
    try:
        return works(peer, endpoint)
    except PeerError:
        return False


def test_failing_handler_ends_only_its_connection(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening()

    def fail(connection: PeerSocket, hello: Mapping[str, object]) -> None:
        raise RemoteProtocolError("it sent NaN", peer=connection.peer)

    listener.handle("fail", fail)
    connection = connect(client, endpoint, {"purpose": "fail"})
    with pytest.raises(PeerLost):
        connection.receive_frame()
    eventually(lambda: listener.statistics().handler_errors == 1)
    assert works(client, endpoint)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_in_a_handler_ends_only_its_connection(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, endpoint = listening()

    def bug(connection: PeerSocket, hello: Mapping[str, object]) -> None:
        raise KeyError("bug")

    listener.handle("bug", bug)
    connection = connect(client, endpoint, {"purpose": "bug"})
    with pytest.raises(PeerLost):
        connection.receive_frame()
    assert works(client, endpoint)
    eventually(lambda: listener.statistics().connections_now == 0)


def test_removed_peer_is_disconnected_at_once(
    client: Credentials, listening: ListenerFactory, echo: Echo
) -> None:
    listener, endpoint = listening()
    connection = connect(client, endpoint, ECHO)
    assert echo.arrived.acquire(timeout=DEADLINE_S)
    listener.drop(client.peer)
    with pytest.raises(PeerLost):
        connection.receive_frame()


def test_closing_the_listener_ends_every_thread_and_closes_every_socket(
    server: Credentials, client: Credentials, echo: Echo
) -> None:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    listener = Listener(
        server,
        "127.0.0.1",
        0,
        allowed=lambda peer: True,
        bounds=ListenerLimits(handshake_s=2 * DEADLINE_S),
    )
    with listener:
        listener.trust_certificate(client.certificate_der)
        listener.handle("echo", echo)
        endpoint = Endpoint(server.peer, *listener.address, server.certificate_der)
        connection = connect(client, endpoint, ECHO)
        silent = socket.create_connection(listener.address, timeout=DEADLINE_S)
        assert echo.arrived.acquire(timeout=DEADLINE_S)
    connection.close()
    silent.close()
    eventually(lambda: set(threading.enumerate()) <= threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_port_in_use_gives_a_clear_error(server: Credentials, listening: ListenerFactory) -> None:
    listener, _ = listening()
    with pytest.raises(ConfigError) as caught:
        Listener(server, *listener.address, allowed=lambda peer: True)
    assert caught.value.code == "PORT-IN-USE"
    assert str(listener.address[1]) in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize("host", ["203.0.113.7", "not an address"])
def test_listening_on_an_address_of_another_host_gives_a_clear_error(
    server: Credentials, host: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Listener(server, host, 0, allowed=lambda peer: True)
    assert caught.value.code == "ADDR-LISTEN"


class TestDialling:
    """The dialler gets a clear error for each kind of misbehaving peer."""

    def test_refused_connection_gives_a_clear_error(
        self, server: Credentials, client: Credentials
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        endpoint = Endpoint(server.peer, "127.0.0.1", port, server.certificate_der)
        with pytest.raises(PeerUnreachable) as caught:
            connect(client, endpoint, ECHO)
        assert caught.value.peer == server.peer

    def test_silent_port_gives_a_clear_error(
        self, server: Credentials, client: Credentials
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            endpoint = Endpoint(server.peer, "127.0.0.1", port, server.certificate_der)
            with pytest.raises(PeerTooSlow):
                dial(client, endpoint, ECHO, deadline_s=0.2)

    def test_listener_that_sends_byte_by_byte_gives_a_clear_error(
        self, server: Credentials, client: Credentials, background: Background
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            endpoint = Endpoint(server.peer, host, port, server.certificate_der)
            dialled = background(lambda: dial(client, endpoint, ECHO, deadline_s=SHORT_S))
            theirs, _ = listener.accept()
            with theirs, dripping(theirs, HANDSHAKE), in_time():
                assert isinstance(dialled(), PeerTooSlow)

    def test_web_server_at_the_address_gives_a_clear_error(
        self, server: Credentials, client: Credentials, background: Background
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as web:

            def answer() -> None:
                connection, _ = web.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            done = background(answer)
            port = web.getsockname()[1]
            endpoint = Endpoint(server.peer, "127.0.0.1", port, server.certificate_der)
            with pytest.raises(PeerUnreachable, match="no TLS"):
                connect(client, endpoint, ECHO)
            assert done() is None

    def test_wrong_peer_at_the_address_gives_a_clear_error(
        self, stranger: Credentials, client: Credentials, listening: ListenerFactory
    ) -> None:
        _, endpoint = listening()
        wrong = Endpoint(stranger.peer, endpoint.host, endpoint.port, stranger.certificate_der)
        with pytest.raises(RemoteProtocolError, match="did not present the") as caught:
            connect(client, wrong, ECHO)
        assert caught.value.peer == stranger.peer

    def test_endpoint_with_another_peers_certificate_gives_a_clear_error(
        self, stranger: Credentials, client: Credentials, listening: ListenerFactory
    ) -> None:
        _, endpoint = listening()
        mixed = Endpoint(stranger.peer, endpoint.host, endpoint.port, endpoint.certificate_der)
        with pytest.raises(RemoteProtocolError, match="belongs to another peer"):
            connect(client, mixed, ECHO)

    @pytest.mark.parametrize("answer", [b"\x00\x00\x00\x01\x01", b"\xff\xff\xff\xff"])
    def test_malformed_answer_gives_a_clear_error(
        self, server: Credentials, client: Credentials, background: Background, answer: bytes
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as fake:
            context = tls_context(server, [client.certificate_der], server=True)

            def reply() -> None:
                raw, _ = fake.accept()
                with context.wrap_socket(raw, server_side=True) as secured:
                    secured.sendall(answer)
                    secured.recv(4096)
                    secured.recv(4096)

            done = background(reply)
            port = fake.getsockname()[1]
            endpoint = Endpoint(server.peer, "127.0.0.1", port, server.certificate_der)
            with pytest.raises(RemoteProtocolError) as caught:
                connect(client, endpoint, ECHO)
            assert caught.value.peer == server.peer
            done()


class TestRingInbox:
    RUN = RunId("ab" * 32)

    def key(self, client: Credentials, stream: int = 0, attempt: int = 0) -> RingKey:
        return RingKey(self.RUN, 3, attempt, stream, client.peer)

    @pytest.fixture
    def inbox(self) -> RingInbox:
        return RingInbox(parked_per_peer_max=3)

    @pytest.fixture
    def endpoint(self, listening: ListenerFactory, inbox: RingInbox) -> Endpoint:
        listener, endpoint = listening()
        listener.handle("ring", inbox.handle)
        return endpoint

    def test_parked_socket_is_kept_until_it_is_taken(
        self, client: Credentials, endpoint: Endpoint, inbox: RingInbox
    ) -> None:
        ours = connect(client, endpoint, self.key(client).to_hello())
        eventually(lambda: len(inbox) == 1)
        theirs = inbox.wait_for_socket(self.key(client), deadline_s=DEADLINE_S)
        theirs.send_frame(b"ring")
        assert ours.receive_frame() == b"ring"
        assert len(inbox) == 0
        theirs.close()
        ours.close()

    def test_wait_that_begins_early_gets_its_socket_later(
        self, client: Credentials, endpoint: Endpoint, inbox: RingInbox, background: Background
    ) -> None:
        taking = background(
            lambda: inbox.wait_for_socket(self.key(client, 1), deadline_s=DEADLINE_S)
        )
        other = connect(client, endpoint, self.key(client, 0).to_hello())
        wanted = connect(client, endpoint, self.key(client, 1).to_hello())
        theirs = taking()
        assert isinstance(theirs, PeerSocket)
        wanted.send_frame(b"1")
        assert theirs.receive_frame() == b"1"
        for connection in (other, wanted, theirs):
            connection.close()

    def test_neighbour_that_does_not_connect_is_named(
        self, client: Credentials, inbox: RingInbox
    ) -> None:
        with pytest.raises(PeerTooSlow) as caught:
            inbox.wait_for_socket(self.key(client), deadline_s=0.05)
        assert caught.value.peer == client.peer

    def test_giving_up_an_attempt_ends_its_waits_and_closes_its_sockets(
        self, client: Credentials, endpoint: Endpoint, inbox: RingInbox, background: Background
    ) -> None:
        parked = connect(client, endpoint, self.key(client, 0).to_hello())
        later = connect(client, endpoint, self.key(client, 0, attempt=1).to_hello())
        eventually(lambda: len(inbox) == 2)
        taking = background(lambda: inbox.wait_for_socket(self.key(client, 1), deadline_s=30))
        eventually(lambda: len(inbox._wanted) == 1)
        inbox.give_up(run=self.RUN, step=3, attempt=0)
        assert isinstance(taking(), PeerLost)
        with pytest.raises(PeerLost):
            parked.receive_frame()
        inbox.wait_for_socket(self.key(client, 0, attempt=1), deadline_s=DEADLINE_S).close()
        later.close()

    def test_wait_for_an_attempt_already_given_up_ends_at_once(
        self, client: Credentials, inbox: RingInbox
    ) -> None:
        """A thread can be started just before the attempt is given up, and begin to wait only
        afterwards."""
        inbox.give_up(run=self.RUN, step=3, attempt=0)
        with pytest.raises(PeerLost):
            inbox.wait_for_socket(self.key(client), deadline_s=30)
        with pytest.raises(PeerTooSlow):
            inbox.wait_for_socket(self.key(client, attempt=1), deadline_s=0.05)

    def test_second_connection_for_a_stream_replaces_the_first(
        self, client: Credentials, endpoint: Endpoint, inbox: RingInbox
    ) -> None:
        first = connect(client, endpoint, self.key(client).to_hello())
        eventually(lambda: len(inbox) == 1)
        second = connect(client, endpoint, self.key(client).to_hello())
        with pytest.raises(PeerLost):
            first.receive_frame()
        theirs = inbox.wait_for_socket(self.key(client), deadline_s=DEADLINE_S)
        second.send_frame(b"second")
        assert theirs.receive_frame() == b"second"
        theirs.close()
        second.close()

    def test_one_peer_cannot_fill_the_inbox(
        self, client: Credentials, endpoint: Endpoint, inbox: RingInbox
    ) -> None:
        held = [
            connect(client, endpoint, self.key(client, stream).to_hello()) for stream in range(3)
        ]
        eventually(lambda: len(inbox) == 3)
        extra = connect(client, endpoint, self.key(client, 3).to_hello())
        with pytest.raises(PeerLost):
            extra.receive_frame()
        assert len(inbox) == 3
        for connection in held:
            connection.close()

    def test_socket_that_is_not_taken_is_closed_in_time(
        self, client: Credentials, listening: ListenerFactory
    ) -> None:
        inbox = RingInbox(parked_s=0.05)
        listener, endpoint = listening()
        listener.handle("ring", inbox.handle)
        forgotten = connect(client, endpoint, self.key(client).to_hello())
        with pytest.raises(PeerLost):
            forgotten.receive_frame()
        eventually(lambda: len(inbox) == 0)

    @pytest.mark.parametrize(
        "change",
        [
            {"run": "x"},
            {"step": -1},
            {"step": 1 << 50},
            {"attempt": True},
            {"stream": "0"},
            {"a": 1},
        ],
    )
    def test_malformed_hello_is_refused(
        self, client: Credentials, change: dict[str, object]
    ) -> None:
        hello = {**self.key(client).to_hello(), **change}
        with pytest.raises(RemoteProtocolError) as caught:
            RingKey.from_hello(hello, PeerId(client.peer))
        assert caught.value.peer == client.peer
