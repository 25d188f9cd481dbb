"""Peers that average inside this process, in real threads, over socket pairs, loopback TCP or
TLS.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    PeerSocket,
    RingInbox,
    RingKey,
    Uplink,
    dial,
    plain_pair,
)
from p2ptrain.errors import ReduceAborted
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import CodecName
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import (
    Difference,
    Reduce,
    ReduceRequest,
    ReduceStatistics,
    Schedule,
    Signing,
    Source,
)
from p2ptrain.ring.attempt import GRACE_S

RUN = RunId("ab" * 32)
DEADLINE_S = 120.0
"""Time limit in seconds of a reduce in a test. A reduce normally takes milliseconds, but on a busy
machine its threads sometimes got only one second of processor time in a minute.
"""
SILENCE_S = 60.0
"""The time in seconds after which a silent peer is suspected. It is so long that a peer on a busy
machine is never suspected. Tests of silent peers set a shorter time.
"""

Pair = tuple[PeerSocket, PeerSocket]
Connect = Callable[[PeerId, PeerId], Pair]
Hostile = Callable[["Ring", int], None]
Outcome = ReduceStatistics | ReduceAborted


def tcp_pair(left: PeerId, right: PeerId) -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return (
        PeerSocket(dialled, right, deadline_s=DEADLINE_S),
        PeerSocket(accepted, left, deadline_s=DEADLINE_S),
    )


@dataclass
class Ring:
    """The peers of one reduce. `edges[i, j]`, i < j, are the socket pairs between two neighbours; i
    has the first socket of each pair.
    """

    requests: list[ReduceRequest]
    edges: dict[tuple[int, int], list[Pair]]
    theta: np.ndarray
    locals: list[np.ndarray]
    payloads: list[np.ndarray]
    sources: dict[int, Source] = field(default_factory=dict)
    residuals: dict[int, np.ndarray] = field(default_factory=dict)
    residuals_out: dict[int, np.ndarray] = field(default_factory=dict)
    limits: dict[int, Uplink] = field(default_factory=dict)
    reduces: dict[int, Reduce] = field(default_factory=dict)
    signings: dict[int, Signing] = field(default_factory=dict)
    grace_s: float = GRACE_S
    took_s: float = 0.0
    """Seconds from the start of the honest peers until the last of them has ended."""

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return self.requests[0].peers

    def links(self, me: int) -> dict[PeerId, list[PeerSocket]]:
        return {
            self.peers[i + j - me]: [pair[me == j] for pair in pairs]
            for (i, j), pairs in self.edges.items()
            if me in (i, j)
        }

    def sockets(self, me: int) -> list[PeerSocket]:
        return [sock for sockets in self.links(me).values() for sock in sockets]

    def previous(self, me: int) -> list[PeerSocket]:
        return self.links(me)[self.peers[me - 1]]

    def next(self, me: int) -> list[PeerSocket]:
        return self.links(me)[self.peers[(me + 1) % len(self.peers)]]

    def reduce(self, me: int) -> Reduce:
        if me not in self.reduces:
            self.reduces[me] = Reduce(
                self.requests[me],
                self.links(me),
                self.sources.get(me) or Difference(self.theta, self.locals[me]),
                self.payloads[me],
                self.limits.get(me),
                residual=self.residuals.get(me),
                residual_out=self.residuals_out.get(me),
                grace_s=self.grace_s,
                signing=self.signings.get(me),
            )
        return self.reduces[me]

    def run(
        self,
        hostile: dict[int, Hostile] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[int, Outcome]:
        """Run the reduce and return its outcome for each honest peer. Peers in `hostile` run their
        own script.
        """
        hostile = hostile or {}
        honest = [me for me in range(len(self.peers)) if me not in hostile]
        with ThreadPoolExecutor(len(self.peers), thread_name_prefix="test") as pool:
            scripts = [pool.submit(script, self, me) for me, script in hostile.items()]
            begun = time.monotonic()
            running = {me: pool.submit(self.reduce(me).run) for me in honest}
            meanwhile()
            outcomes = {me: _outcome_of(running[me]) for me in honest}
            self.took_s = time.monotonic() - begun
            self.close()
            for script in scripts:
                script.result(DEADLINE_S)
        return outcomes

    def close(self) -> None:
        for pairs in self.edges.values():
            for pair in pairs:
                pair[0].close()
                pair[1].close()


def _outcome_of(running: Future[ReduceStatistics]) -> Outcome:
    try:
        return running.result(DEADLINE_S)
    except ReduceAborted as exc:
        return exc


Build = Callable[..., Ring]


@pytest.fixture
def build() -> Iterator[Build]:
    """Return a function that builds rings. After the test, close every connection and check that no
    ring thread is left.
    """
    with ExitStack() as stack:

        def make(
            weights: tuple[int, ...],
            numel: int,
            *,
            connect: Connect = plain_pair,
            schedule: Schedule = "ring",
            codec: CodecName = "int8",
            block: int = 256,
            streams: int = 2,
            **settings: float,
        ) -> Ring:
            peers = tuple(PeerId(f"peer-{number}") for number in range(len(weights)))
            rng = np.random.default_rng(numel)
            vectors = rng.standard_t(3, (len(peers) + 1, numel)).astype(np.float32)
            defaults = {"segment_bytes": 4096, "silence_s": SILENCE_S}
            first = ReduceRequest(
                RUN,
                step=7,
                attempt=1,
                peers=peers,
                me=0,
                weights=weights,
                numel=numel,
                codec=codec_of(codec, block),
                schedule=schedule,
                streams=streams,
                **(defaults | settings),  # type: ignore[arg-type]
            )
            requests = [replace(first, me=me) for me in range(len(peers))]
            edges = {
                (me, other): [connect(peers[me], peers[other]) for _ in range(streams)]
                for me, request in enumerate(requests)
                for other in request.plan().neighbours
                if me < other
            }
            payloads = [np.empty(first.codec.encoded_bytes(numel), np.uint8) for _ in peers]
            ring = Ring(requests, edges, vectors[0], list(vectors[1:]), payloads)
            stack.callback(ring.close)
            return ring

        yield make
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("ring")]
    assert left == []


@pytest.fixture
def tcp() -> Connect:
    return tcp_pair


@pytest.fixture
def tls() -> Iterator[Connect]:
    """Return a function that connects two peers as nodes do: with mutual TLS, a listener, and an
    inbox for streams.
    """
    with ExitStack() as stack:
        yield _Secured(stack, encrypted=True)


@pytest.fixture
def plaintext() -> Iterator[Connect]:
    """Return a function that connects two peers as `tls` does, but in a run that does not encrypt
    its bulk data.
    """
    with ExitStack() as stack:
        yield _Secured(stack, encrypted=False)


class _Secured:
    def __init__(self, stack: ExitStack, *, encrypted: bool) -> None:
        self._stack = stack
        self._encrypted = encrypted
        self._credentials: dict[PeerId, Credentials] = {}
        self._count = 0

    def __call__(self, left: PeerId, right: PeerId) -> Pair:
        dialler, answerer = self._of(left), self._of(right)
        self._count += 1
        inbox = RingInbox()
        listener = Listener(
            answerer, "127.0.0.1", 0, allowed=lambda peer: True, encrypted=self._encrypted
        )
        self._stack.enter_context(listener)
        listener.trust_certificate(dialler.certificate_der)
        listener.handle("ring", inbox.handle)
        endpoint = Endpoint(answerer.peer, *listener.address, answerer.certificate_der)
        key = RingKey(RUN, 7, 1, self._count, dialler.peer)
        dialled = dial(
            dialler, endpoint, key.to_hello(), deadline_s=DEADLINE_S, encrypted=self._encrypted
        )
        accepted = inbox.wait_for_socket(key, deadline_s=DEADLINE_S)
        return (
            cast(PeerSocket, _Renamed(dialled, right)),
            cast(PeerSocket, _Renamed(accepted, left)),
        )

    def _of(self, peer: PeerId) -> Credentials:
        if peer not in self._credentials:
            seed = peer.encode().ljust(32, b"\0")
            self._credentials[peer] = Credentials.create(Identity.from_seed(seed))
        return self._credentials[peer]


class _Renamed:
    """A connection whose peer has the short name that the tests give to it."""

    def __init__(self, connection: PeerSocket, peer: PeerId) -> None:
        self._connection = connection
        self.peer = peer

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.fixture
def stopwatch() -> Callable[[], float]:
    begun = time.monotonic()
    return lambda: time.monotonic() - begun
