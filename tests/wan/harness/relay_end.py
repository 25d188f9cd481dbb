"""The relay, or one end of a relayed connection, as a process: the real data plane.

    python -m tests.wan.harness.relay_end relay|ann|bob HOST FOLDER --megabytes 400 --streams 4

FOLDER contains the credentials that `relaying` has written. Ann and Bob connect through the relay
at HOST. Half of the streams carry the bytes from Ann to Bob, the others from Bob to Ann. Each
process prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    PeerSocket,
    RingInbox,
    RingKey,
    Uplink,
)
from p2ptrain.dataplane.relaying import (
    PURPOSE,
    EdgeKey,
    EndedEdge,
    Pace,
    RelayLimits,
    RelayLog,
    RelayServer,
    RelayView,
    Route,
    dial_through,
    serve_through,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import PeerId, RunId

NAMES = ("relay", "ann", "bob")
PORT = 4201
RUN = RunId("a" * 64)
WAIT_S = 300.0
PIECE = bytes(256 << 10)


def write_credentials(folder: Path, name: str, made: Credentials) -> None:
    found = {"peer": made.peer, "certificate": made.certificate_der.hex(), "pem": made.pem.hex()}
    (folder / name).write_text(json.dumps(found))


def credentials_of(folder: Path, name: str) -> Credentials:
    found = json.loads((folder / name).read_text())
    certificate, pem = bytes.fromhex(found["certificate"]), bytes.fromhex(found["pem"])
    return Credentials(PeerId(found["peer"]), certificate, pem)


class UntilEnded(RelayLog):
    """Notes the CPU time when the first stream is joined, and when the edge has ended."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.began: tuple[float, float, float] | None = None
        self.found: dict[str, object] = {}

    def joined(self, request: object) -> None:
        self.began = self.began or (time.process_time(), time.monotonic(), os.times().user)

    def ended(self, ended: EndedEdge, reason: str) -> None:
        assert self.began is not None
        cpu_s, seconds = time.process_time() - self.began[0], time.monotonic() - self.began[1]
        user_s = os.times().user - self.began[2]
        self.found = {"bytes": ended.relayed_bytes, "cpu_s": cpu_s, "seconds": seconds}
        self.found["user_s"] = user_s
        self.found["reason"] = reason
        self.over.set()


def relay(folder: Path, host: str, given: argparse.Namespace) -> dict[str, object]:
    """Relay one edge. Return its bytes, and the CPU time of this process in seconds."""
    mine, *ends = (credentials_of(folder, name) for name in NAMES)
    members = tuple(each.peer for each in (mine, *ends))
    view = RelayView(RUN, members, 0, 0, members[1:])
    log, limit = UntilEnded(), given.limit_up
    limits = RelayLimits(2, given.bytes_per_day or 1 << 60)
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(mine, host, PORT, allowed=lambda peer: True))
        for each in ends:
            listener.trust_certificate(each.certificate_der)
        pace = Pace(Uplink(limit), limit) if limit else None
        server = RelayServer(lambda: view, limits, pace=pace, log=log)
        listener.handle(PURPOSE, stack.enter_context(server))
        assert log.over.wait(WAIT_S)
    return log.found


def end(folder: Path, host: str, given: argparse.Namespace) -> dict[str, object]:
    """Be Ann or Bob. Return how many bytes arrived on the streams that this end receives, when this
    end began to connect, and when its last stream was open."""
    at_relay, ann, bob = (credentials_of(folder, name) for name in NAMES)
    there = Endpoint(at_relay.peer, host, PORT, at_relay.certificate_der)
    mine, other = (ann, bob) if given.name == "ann" else (bob, ann)
    peer = Endpoint(other.peer, host, PORT, other.certificate_der)
    inbox, open_s = RingInbox(), list[float]()
    with Listener(bob, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        listener.trust_certificate(ann.certificate_der)
        listener.handle("ring", inbox.handle)

        def one(stream: int) -> int:
            route = Route(there, peer, EdgeKey(RUN, 0, 0, stream, ann.peer))
            ring = RingKey(RUN, 0, 0, stream, ann.peer)
            if mine is ann:
                hello = ring.to_hello()
                connection = dial_through(mine, route, hello, deadline_s=WAIT_S)
            else:
                serve_through(mine, route, listener, deadline_s=WAIT_S)
                connection = inbox.wait_for_socket(ring, deadline_s=WAIT_S)
            open_s.append(time.monotonic())
            connection.set_deadline(WAIT_S)
            sends = (mine is ann) == (stream % 2 == 0)
            move = _send if sends else _receive
            return move(connection, given.megabytes * 10**6 // given.streams)

        began_s = time.monotonic()
        with ThreadPoolExecutor(given.streams) as pool:
            received = sum(pool.map(one, range(given.streams)))
    return {"received": received, "began_s": began_s, "open_s": max(open_s)}


def _send(connection: PeerSocket, count: int) -> int:
    with suppress(PeerError):
        for _ in range(count // len(PIECE)):
            connection.send_all(PIECE)
        connection.receive_into(bytearray(1))  # The receiver has everything.
    connection.close()
    return 0


def _receive(connection: PeerSocket, count: int) -> int:
    received, piece = 0, bytearray(len(PIECE))
    with suppress(PeerError):
        for _ in range(count // len(PIECE)):
            connection.receive_into(piece)
            received += len(piece)
        connection.send_all(b"x")
    connection.close()
    return received


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.relay_end")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("host")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--limit-up", type=float, default=0.0)
    parser.add_argument("--bytes-per-day", type=int, default=0)
    given = parser.parse_args()
    play: Callable[..., dict[str, object]] = relay if given.name == "relay" else end
    sys.stdout.write(
        json.dumps({"name": given.name} | play(given.folder, given.host, given)) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
