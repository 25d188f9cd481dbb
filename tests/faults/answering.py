"""Programs that answer at an address: a silent server, a web server, a server that hangs up, and
peers that lie.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import trio

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, open_network
from p2ptrain.peers.hello_messages import HelloReply, HelloRequest, decode_request, encode_reply
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL

STRANGER = Identity.from_seed(b"stranger".ljust(32)).peer
START_S = 60.0

Answer = Callable[[socket.socket], None]


def at(port: int, peer: PeerId = STRANGER) -> str:
    """Return the address of the program that listens at this port of this machine."""
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def dead_port() -> int:
    """Return a port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def says_nothing(client: socket.socket) -> None:
    while client.recv(4096):
        pass  # Wait until the other side gives up.


def is_a_web_server(client: socket.socket) -> None:
    client.recv(4096)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client.shutdown(socket.SHUT_WR)
    says_nothing(client)  # Closing it with unread bytes would discard the answer.


def hangs_up(client: socket.socket) -> None:
    """Let the server close the connection at once."""


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """Yield the port of a TCP server that gives this answer on each connection and then closes
    it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, suppress(OSError):  # The client can disconnect at any time.
                    client.settimeout(START_S)
                    answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(START_S)


@dataclass
class Peer:
    """A real peer of the network that sends what a test wants."""

    identity: Identity
    address: str
    asked: list[HelloRequest]
    _network: Network
    _token: trio.lowlevel.TrioToken
    _closing: trio.Event = field(default_factory=trio.Event)

    def connect(self, address: str) -> None:
        """Connect to the node at `address`."""
        trio.from_thread.run(self._network.connect, address, trio_token=self._token)

    def publish(self, topic: str, payload: bytes) -> None:
        """Gossip `payload`."""
        trio.from_thread.run(self._network.publish, topic, payload, trio_token=self._token)

    def follow(self, topic: str) -> None:
        """Subscribe to `topic`, as every node of a run does."""
        trio.from_thread.run_sync(self._network.subscribe, topic, trio_token=self._token)

    def leave(self) -> None:
        trio.from_thread.run_sync(self._closing.set, trio_token=self._token)


@contextmanager
def peer(identity: Identity, answer: Callable[[], HelloReply]) -> Iterator[Peer]:
    """Run a peer that answers every hello with `answer()`."""
    opened: list[Peer] = []
    ready = threading.Event()
    asked: list[HelloRequest] = []

    async def hello(_: PeerId, payload: bytes) -> bytes:
        asked.append(decode_request(payload))
        return encode_reply(answer())

    async def live() -> None:
        async with open_network(
            identity, listen=["/ip4/127.0.0.1/tcp/0"], admitted=lambda _: True
        ) as network:
            network.handle(HELLO_PROTOCOL, hello, anyone=True)
            token = trio.lowlevel.current_trio_token()
            me = Peer(identity, network.addresses()[0], asked, network, token)
            opened.append(me)
            ready.set()
            await me._closing.wait()

    thread = threading.Thread(target=trio.run, args=(live,))
    thread.start()
    try:
        assert ready.wait(START_S), "the peer did not start"
        yield opened[0]
    finally:
        if opened:
            opened[0].leave()
        thread.join(START_S)
