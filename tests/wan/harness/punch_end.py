"""One end of punched connections, as a process: the real data plane, and a control connection
through a third node.

    python -m tests.wan.harness.punch_end meeting HOST
    python -m tests.wan.harness.punch_end ann|bob HOST --tries 40 --streams 4

`meeting` runs in an open node at HOST. It observes ports, as a member of a run would, and passes
messages between Ann and Bob. Ann offers. Each of them prints one line of JSON for each try.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    ExternalAddress,
    Listener,
    LocalPort,
    Observation,
    ObserveServer,
    PeerSocket,
    PunchSessions,
    Sightings,
    observe,
    punch_and_dial,
    punch_and_serve,
)
from p2ptrain.dataplane.observing import PURPOSE
from p2ptrain.dataplane.punch_messages import decode, encode
from p2ptrain.dataplane.punch_sessions import Effect, Failed, Gather, Punch, Send
from p2ptrain.errors import P2PTrainError
from p2ptrain.identity import Identity

NAMES = ("ann", "bob", "meeting")
PORT = 4201
"""The port of the control connection in the meeting node. Its data plane has the next port."""
WAIT_S = 30.0
"""Timeout in seconds of everything that is not measured."""

_LENGTH = struct.Struct(">I")


def credentials_of(name: str) -> Credentials:
    return Credentials.create(Identity.from_seed(bytes([NAMES.index(name) + 1]) * 32))


def send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return _exactly(sock, length)


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def meet(host: str, port: int = PORT, listening: Callable[[], object] = bool) -> None:
    """Observe ports and pass messages until an end leaves. Call `listening` when both ends may
    call."""
    mine = credentials_of("meeting")
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(mine, host, port + 1, allowed=lambda peer: True))
        observing = ObserveServer(now=lambda: 60 * time.monotonic())  # The limit is not measured.
        listener.handle(PURPOSE, observing)
        control = stack.enter_context(socket.create_server((host, port)))
        listening()
        ends: dict[bytes, tuple[socket.socket, str]] = {}
        for _ in range(2):
            sock, (seen, _) = control.accept()
            stack.enter_context(sock)
            name, _, certificate = receive(sock).partition(b" ")
            listener.trust_certificate(certificate)
            ends[name] = sock, str(seen)
            ends[name + b"'s certificate"] = sock, certificate.hex()
        for name, other in ((b"ann", b"bob"), (b"bob", b"ann")):
            told = {
                "member": mine.certificate_der.hex(),
                "peer": ends[other + b"'s certificate"][1],
                "peer_seen": ends[other][1],
                "own_seen": ends[name][1],
            }
            send(ends[name][0], json.dumps(told).encode())
        _pass_messages(ends[b"ann"][0], ends[b"bob"][0])


def _pass_messages(ann: socket.socket, bob: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(ann, selectors.EVENT_READ, bob)
        selector.register(bob, selectors.EVENT_READ, ann)
        with suppress(EOFError, OSError):
            while True:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    send(key.data, receive(key.fileobj))


@dataclass(frozen=True, slots=True)
class Try:
    """The result of one try at one end. `ms` is the time from the start of punching until the hello
    of the last stream was answered, and `whole_ms` that since the offer was begun."""

    end: str
    number: int
    good: int
    of: int
    ms: float
    whole_ms: float
    faults: tuple[str, ...] = ()


class End:
    """Ann or Bob. Both trust each other and the meeting node."""

    def __init__(
        self, name: str, listener: Listener, mine: Credentials, host: str, port: int = PORT
    ) -> None:
        self.name, self.mine, self.listener = name, mine, listener
        self.control = socket.create_connection((host, port), WAIT_S)
        send(self.control, name.encode() + b" " + mine.certificate_der)
        told = json.loads(receive(self.control))
        self.control.settimeout(None)
        theirs, member = bytes.fromhex(told["peer"]), bytes.fromhex(told["member"])
        self.peer = listener.trust_certificate(theirs)
        self.certificate = theirs
        self.member = Endpoint(credentials_of("meeting").peer, host, port + 1, member)
        self.sightings = Sightings(
            by_forwarder=frozenset({told["peer_seen"]}), own_hosts=frozenset({told["own_seen"]})
        )
        self.sessions = PunchSessions(offers_per_s=100.0)  # The limit is not measured.
        self.inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def leave(self) -> None:
        """End the control connection. Bob first waits until Ann has done so."""
        if self.name == "ann":
            self.control.shutdown(socket.SHUT_RDWR)
        self._reader.join(WAIT_S)
        self.control.close()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.inbox.put(receive(self.control))

    def ports(
        self, count: int, stack: ExitStack
    ) -> tuple[list[LocalPort], tuple[ExternalAddress, ...]]:
        """Return free ports with their external addresses, which remain valid until `stack` is
        closed."""
        ports = [LocalPort() for _ in range(count)]

        def ask(port: LocalPort) -> Observation:
            return observe(self.mine, self.member, port, deadline_s=WAIT_S)

        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(ask, ports))
        for each in found:
            stack.callback(each.close)
        return ports, tuple(each.seen for each in found)

    def take_part(self, number: int, streams: int) -> Try:
        """Make one try, as the end that offers or as the other one."""
        with ExitStack() as stack:
            begun_s = time.monotonic()
            ports: list[LocalPort] = []
            effects: list[Effect] = []
            if self.name == "ann":
                ports, ours = self.ports(streams, stack)
                nonce, about = os.urandom(16), f"try {number}"
                now = time.monotonic()
                effects += self.sessions.offer(self.peer, about, ours, nonce=nonce, now=now)
            while True:
                effects = effects or self._next_effects()
                match effects.pop(0):
                    case Send(_, message):
                        send(self.control, encode(message))
                    case Gather(peer, nonce, _, count):
                        ports, ours = self.ports(count, stack)
                        now = time.monotonic()
                        effects += self.sessions.gathered(peer, nonce, ours, now=now)
                    case Punch() as agreed:
                        # A message that comes meanwhile waits; it is only a repetition.
                        for rest in effects:
                            assert isinstance(rest, Send)
                            send(self.control, encode(rest.message))
                        return self._punch(agreed, number, ports, begun_s)
                    case Failed(_, _, _, reason, _):
                        return Try(self.name, number, 0, streams, 0.0, 0.0, (reason,))

    def _next_effects(self) -> list[Effect]:
        """Wait for a message or a deadline. Return the effects, of which there is at least one."""
        effects: list[Effect] = []
        while not effects:
            wait_s = self.sessions.next_deadline() - time.monotonic()
            try:
                data = self.inbox.get(timeout=min(max(wait_s, 0.0), WAIT_S))
            except queue.Empty:
                effects = self.sessions.tick(time.monotonic())
            else:
                now, message = time.monotonic(), decode(data)
                effects = self.sessions.receive(self.peer, message, self.sightings, now=now)
        return effects

    def _punch(self, agreed: Punch, number: int, ports: list[LocalPort], begun_s: float) -> Try:
        time.sleep(max(agreed.start_at - time.monotonic(), 0.0))
        start_s = time.monotonic()
        proven_s = [start_s]

        def one(stream: int) -> str:
            there = agreed.theirs[stream]
            endpoint = Endpoint(self.peer, there.host, there.port, self.certificate)
            try:
                if agreed.dials:
                    hello = {"purpose": "echo", "try": number, "stream": stream}
                    connection = punch_and_dial(self.mine, endpoint, hello, ports[stream])
                    proven_s.append(time.monotonic())
                    connection.set_deadline(WAIT_S)
                    connection.send_frame(b"still there?")
                    assert connection.receive_frame() == b"still there?"
                    connection.close()
                else:
                    punch_and_serve(self.listener, endpoint, ports[stream])
                    proven_s.append(time.monotonic())
            except P2PTrainError as exc:
                return exc.what
            return ""

        with ThreadPoolExecutor(len(ports)) as pool:
            outcomes = list(pool.map(one, range(len(ports))))
        faults = tuple(each for each in outcomes if each)
        good, of = len(ports) - len(faults), len(ports)
        ms, whole_ms = (round(1000 * (max(proven_s) - since), 1) for since in (start_s, begun_s))
        return Try(self.name, number, good, of, ms, whole_ms, faults)


def echo(connection: PeerSocket, hello: Mapping[str, object]) -> None:
    connection.send_frame(connection.receive_frame())


def play(name: str, tries: int, streams: int, host: str, port: int = PORT) -> Iterator[Try]:
    """Be Ann or Bob. Yield the result of each try."""
    mine = credentials_of(name)
    with Listener(mine, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        listener.handle("echo", echo)
        end = End(name, listener, mine, host, port)
        for number in range(tries):
            yield end.take_part(number, streams)
        end.leave()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.punch_end")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("host")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--streams", type=int, default=4)
    given = parser.parse_args()
    if given.name == "meeting":
        meet(given.host)
        return 0
    for found in play(given.name, given.tries, given.streams, given.host):
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
