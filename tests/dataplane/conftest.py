"""Peers with credentials, a listener that one of them runs, and connections to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from p2ptrain.dataplane import Credentials, Endpoint, Listener, ListenerLimits, PeerSocket, dial
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId

DEADLINE_S = 60.0
"""Time limit of an operation in seconds. On an idle machine, an operation takes milliseconds."""

SHORT_S = 0.3
"""A time limit in seconds that a test expects to be exceeded."""
DRIP_S = 0.05
DROPS = 200
"""A dripping peer sends this many bytes, one every DRIP_S seconds. Each byte arrives in time, but
all of them together take far too long."""
SOON_S = DROPS * DRIP_S / 2
"""Seconds in which `in_time` expects its block to end: half of the time that dripping takes."""

HANDSHAKE = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(1 << 14)
"""The start of a TLS record of 16 KiB. The receiver has to wait for the complete record."""


@contextmanager
def dripping(sock: socket.socket, data: bytes) -> Iterator[None]:
    """Inside the block, send `data` to the other end, byte by byte."""
    enough = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            for byte in data[:DROPS]:
                sock.sendall(bytes([byte]))
                if enough.wait(DRIP_S):
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    yield
    enough.set()
    thread.join()


@contextmanager
def in_time() -> Iterator[None]:
    """Check that the block ends long before `dripping` has sent its last byte."""
    begun_s = time.monotonic()
    yield
    assert time.monotonic() - begun_s < SOON_S


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def named(peer: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)])


def certificate_in_the_name_of(
    maker: Identity, subject: x509.Name, issuer: x509.Name, *more: x509.ExtensionType
) -> bytes:
    """Return a certificate by `maker` with valid signatures, these names, and `more` extensions."""
    pem = Credentials.create(maker).pem
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    usual = x509.load_pem_x509_certificate(pem)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(usual.not_valid_before_utc)
        .not_valid_after(usual.not_valid_after_utc)
    )
    for extension in (*(each.value for each in usual.extensions), *more):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.fixture(scope="session")
def server() -> Credentials:
    return Credentials.create(identity(1))


@pytest.fixture(scope="session")
def client() -> Credentials:
    return Credentials.create(identity(2))


@pytest.fixture(scope="session")
def stranger() -> Credentials:
    return Credentials.create(identity(3))


@dataclass
class Echo:
    """A handler that echoes every frame and records the peers that connected."""

    served: list[tuple[PeerId, Mapping[str, object]]]
    arrived: threading.Semaphore

    def __call__(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        self.served.append((connection.peer, hello))
        self.arrived.release()
        while True:
            connection.send_frame(connection.receive_frame())


@pytest.fixture
def echo() -> Echo:
    return Echo([], threading.Semaphore(0))


_opened: list[PeerSocket] = []


def connect(
    credentials: Credentials,
    endpoint: Endpoint,
    hello: Mapping[str, object],
    *,
    encrypted: bool = True,
) -> PeerSocket:
    """Dial the endpoint. The connection is closed at the end of the test."""
    connection = dial(credentials, endpoint, hello, deadline_s=DEADLINE_S, encrypted=encrypted)
    _opened.append(connection)
    return connection


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


ListenerFactory = Callable[..., tuple[Listener, Endpoint]]


@pytest.fixture
def listening(server: Credentials, client: Credentials, echo: Echo) -> Iterator[ListenerFactory]:
    """Return a function that makes listeners. They trust `client`, and serve the purpose "echo"
    until the test ends."""
    with ExitStack() as stack:

        def make(
            allowed: Callable[[PeerId], bool] = lambda peer: True,
            *,
            encrypted: bool = True,
            host: str = "127.0.0.1",
            **bounds: float,
        ) -> tuple[Listener, Endpoint]:
            listener = Listener(
                server,
                host,
                0,
                allowed=allowed,
                encrypted=encrypted,
                bounds=ListenerLimits(**bounds),  # type: ignore[arg-type]
            )
            stack.enter_context(listener)
            listener.trust_certificate(client.certificate_der)
            listener.handle("echo", echo)
            bound, port = listener.address
            return listener, Endpoint(server.peer, bound, port, server.certificate_der)

        yield make


def in_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Start `call` in a thread. Return a function that waits for its result or exception and
    returns it."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> object:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        return outcome[0]

    return result


@pytest.fixture
def background() -> Callable[[Callable[[], object]], Callable[[], object]]:
    return in_thread


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until another thread has made `holds` true."""
    never = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if holds():
            return
        never.wait(0.005)
    raise AssertionError("the condition did not hold in time")
