"""All traffic of a node shares one cap on its uplink, measured in bytes on real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from p2ptrain.dataplane import PeerShares, PeerSocket, SendPriority, Uplink
from p2ptrain.dataplane.pacing import FLOOR
from p2ptrain.errors import PeerError, ReduceAborted
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ring import Reduce, ReduceStatistics, Schedule
from p2ptrain.store import CHUNK_BYTES_MAX, MemoryDisk, Store
from p2ptrain.swarm import ChunkServer
from p2ptrain.swarm.wire import receive_response, send_request
from tests.ring.conftest import Build, Connect

from .conftest import DEADLINE_S

RATE = 500_000
"""The cap on the uplink, in bytes per second. It is so low that the bytes of all open requests take
more than half a second to send. A busy machine wakes threads late, and no thread should lose its
turn because of that.
"""
FETCHERS = 3
LEAP_S_MAX = 0.1
"""The longest jump of the test's clock, in seconds; longer jumps are cut to it. Without this limit,
the uplink would release all waiting senders at once after a pause of a busy machine.
"""


class SteadyClock:
    """Real time without jumps. Each reading of the clock calls `look`. The uplink holds its lock at
    that time, so no sender can continue.
    """

    def __init__(self) -> None:
        self.look: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._now = 0.0
        self._real = time.monotonic()

    def __call__(self) -> float:
        with self._lock:
            real = time.monotonic()
            self._now += min(real - self._real, LEAP_S_MAX)
            self._real = real
            self.look()
            return self._now


@contextmanager
def greedy_fetchers(server: ChunkServer, chunk: Digest, connect: Connect) -> Iterator[list[int]]:
    """Run peers that fetch one chunk again and again. Yield the number of bytes that each has
    received.
    """
    got = [0] * FETCHERS

    def fetch(me: int, sock: PeerSocket) -> None:
        buffer = bytearray(CHUNK_BYTES_MAX)
        try:
            while True:
                send_request(sock, chunk)
                response = receive_response(sock, buffer, 20.0)
                assert response is not None
                got[me] += len(response)
        except PeerError:
            return

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * FETCHERS))
        for me in range(FETCHERS):
            client, served = connect(PeerId(f"fetcher-{me}"), PeerId("node"))
            stack.callback(client.close)
            stack.callback(served.close)
            pool.submit(server, served, {})
            pool.submit(fetch, me, client)
        yield got


def sent_by(reduce: Reduce) -> int:
    return sum(each.sent_bytes for each in reduce.traffic())


def test_ring_and_swarm_share_the_cap_and_the_ring_has_priority(build: Build, tcp: Connect) -> None:
    """Three greedy fetchers of small chunks and a reduce of 1 MB share the uplink."""
    store = Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1 << 16)
    chunk = store.put_chunk(bytes(30_000))
    with ExitStack() as stack:
        clock = SteadyClock()
        uplink = Uplink(RATE, burst_bytes=0, clock=clock)
        stack.callback(uplink.close)
        server = ChunkServer(store, limit=PeerShares(uplink, SendPriority.SWARM).wait_to_send)
        got = stack.enter_context(greedy_fetchers(server, chunk, tcp))
        ring = build((1, 1), 1_000_000, streams=4, segment_bytes=1 << 16, connect=tcp)
        ring.limits = {0: uplink}
        begun, before = clock(), sum(got)
        outcomes = ring.run()
        taken_s, swarm_bytes = clock() - begun, sum(got) - before
        uplink.close()
    reports = [each for each in outcomes.values() if isinstance(each, ReduceStatistics)]
    assert len(reports) == len(outcomes), outcomes
    ring_bytes = reports[0].sent_bytes
    total, cap = ring_bytes + swarm_bytes, RATE * taken_s
    assert 0.85 * cap <= total <= 1.05 * cap, (ring_bytes, swarm_bytes, taken_s)
    # If three fetchers and four streams took strict turns, the swarm would get a quarter.
    assert FLOOR / 2 * total <= swarm_bytes <= 0.15 * total, (ring_bytes, swarm_bytes)


class Stopped:
    """A fake uplink that never allows sending. It is also its own share. `asked` contains the
    number of bytes of each request for a ticket.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []

    def share(self, rank: SendPriority) -> Stopped:
        return self

    def request_ticket(self, count: int) -> int:
        self.asked.append(count)
        return count

    def wait_s(self, ticket: int) -> float:
        return 60.0

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("schedule", "peers", "asked"), [("ring", 9, 4), ("direct", 9, 8)])
def test_capped_neighbours_take_turns_segment_by_segment(
    build: Build, schedule: Schedule, peers: int, asked: int
) -> None:
    """Peer 0 has an open request for a ticket for each of its eight neighbours with `direct`,
    whatever the number of connections. In a ring it has four for its only receiver.
    """
    uplink = Stopped()
    ring = build((1,) * peers, 200_000, schedule=schedule, streams=4, deadline_s=0.3)
    ring.limits = {0: cast(Uplink, uplink)}
    outcomes = ring.run()
    assert isinstance(outcomes[0], ReduceAborted)
    assert len(uplink.asked) == asked


def test_three_simultaneous_reduces_get_equal_bytes(build: Build, tcp: Connect) -> None:
    """The reduces have the same neighbours. When the shortest is nearly done, the other two have
    sent as many bytes.
    """
    clock = SteadyClock()
    uplink = Uplink(RATE, burst_bytes=0, clock=clock)
    short, *longer = (
        build((1, 1), numel, streams=streams, segment_bytes=1 << 15, connect=tcp)
        for numel, streams in ((300_000, 4), (450_000, 4), (450_000, 2))
    )
    for ring in (short, *longer):
        ring.limits = {0: uplink}
    due = short.requests[0].plan().bytes_to(1) * 9 // 10
    sent: list[int] = []

    def look() -> None:
        if not sent and sent_by(short.reduce(0)) >= due:
            sent.extend(sent_by(ring.reduce(0)) for ring in (short, *longer))

    for ring in (short, *longer):
        ring.reduce(0)
    clock.look = look
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(ring.run) for ring in longer]
        outcomes = [*short.run().values()]
        for other in others:
            outcomes.extend(other.result(DEADLINE_S).values())
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes), outcomes
    assert sent[1:] == pytest.approx([sent[0]] * 2, rel=0.25)


class SlowLine:
    """Connects two peers by a link that carries bytes at a steady rate in each direction."""

    PIECE_BYTES = 8192
    PIECES_PER_S = 25

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._ended = threading.Event()

    def __call__(self, left: PeerId, right: PeerId) -> tuple[PeerSocket, PeerSocket]:
        near, entry = socket.socketpair()
        leaving, far = socket.socketpair()
        threads = [
            threading.Thread(target=self._carry, args=ends)
            for ends in ((entry, leaving), (leaving, entry))
        ]
        for thread in threads:
            thread.start()
            self._stack.callback(thread.join)
        self._stack.callback(self._end, entry, leaving)
        return (
            PeerSocket(near, right, deadline_s=DEADLINE_S),
            PeerSocket(far, left, deadline_s=DEADLINE_S),
        )

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(self.PIECE_BYTES):
                sink.sendall(data)
                if self._ended.wait(1 / self.PIECES_PER_S):
                    return

    def _end(self, *ends: socket.socket) -> None:
        self._ended.set()
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_slow_link_is_not_mistaken_for_a_trickling_peer(build: Build) -> None:
    """A segment takes 5.1 s, more than the 4 s that a neighbour may spend inside a segment without
    progress. But 64 KiB within 4 s count as progress.
    """
    with ExitStack() as stack:
        ring = build(
            (1, 1), 2 << 20, connect=SlowLine(stack), streams=1,
            segment_bytes=1 << 20, silence_s=4.0,
        )  # fmt: skip
        outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
