"""Fetches share connections with the same source, one after another or at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2ptrain.dataplane import SecureSocket
from p2ptrain.dataplane.sockets import PeerSocket, plain_pair
from p2ptrain.errors import PeerTooSlow, PeerUnreachable, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.store import MemoryDisk, Store, digest_of
from p2ptrain.swarm import ChunkServer, KeptConnections, fetch_chunks
from p2ptrain.swarm.kept_connections import KEEP_S, KEPT_PER_PEER_MAX, OPENING_MAX

ANN = PeerId("ann")
WAIT_S = 60.0
"""Timeout of what takes milliseconds on an idle machine."""


class PeerSource:
    peer = ANN


def new_store() -> Store:
    return Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1024)


class Opener:
    """Opens connections with Ann, and keeps both ends of them."""

    def __init__(self) -> None:
        self.ours: list[PeerSocket] = []
        self.theirs: list[PeerSocket] = []

    def __call__(self) -> SecureSocket:
        ours, theirs = plain_pair(PeerId("me"), ANN, deadline_s=WAIT_S)
        self.ours.append(ours)
        self.theirs.append(theirs)
        return ours

    def close(self) -> None:
        for each in (*self.ours, *self.theirs):
            each.close()


@contextmanager
def kept(now: Callable[[], float] = lambda: 0.0) -> Iterator[tuple[KeptConnections, Opener]]:
    connections, opener = KeptConnections(now=now), Opener()
    connections.begin()
    try:
        yield connections, opener
    finally:
        connections.close()
        opener.close()


def test_next_fetch_takes_the_unused_connection() -> None:
    with kept() as (connections, opener):
        first = connections.take(ANN, opener, wait_s=WAIT_S)
        assert connections.take(ANN, opener, wait_s=WAIT_S) is not first, "the first one is in use"
        connections.give_back(first)
        assert connections.take(ANN, opener, wait_s=WAIT_S) is first
        assert (len(opener.ours), len(connections)) == (2, 0)


def test_connection_that_the_source_ended_or_wrote_to_is_not_used_again() -> None:
    with kept() as (connections, opener):
        one, other = opener(), opener()
        connections.give_back(one)
        connections.give_back(other)
        opener.theirs[0].close()
        opener.theirs[1].send_all(b"not asked for")
        new = connections.take(ANN, opener, wait_s=WAIT_S)
        assert new not in (one, other)
        assert (one.fileno(), other.fileno()) == (-1, -1)
        opener.theirs[2].close()
        connections.give_back(new)
        assert (len(connections), new.fileno()) == (0, -1)


def test_few_unused_connections_are_kept_and_not_for_long() -> None:
    clock = [100.0]
    with kept(lambda: clock[0]) as (connections, opener):
        for _ in range(KEPT_PER_PEER_MAX + 1):
            connections.give_back(opener())
        assert len(connections) == KEPT_PER_PEER_MAX
        clock[0] += KEEP_S - 1
        connections.close_old()
        assert len(connections) == KEPT_PER_PEER_MAX
        clock[0] += 1
        connections.close_old()
        assert [each.fileno() for each in opener.ours] == [-1] * (KEPT_PER_PEER_MAX + 1)


def test_fetches_that_come_later_wait_for_the_connections_that_are_being_opened() -> None:
    may_open = threading.Event()
    with kept() as (connections, opener), ThreadPoolExecutor(OPENING_MAX + 2) as pool:

        def open_slowly() -> SecureSocket:
            assert may_open.wait(WAIT_S)
            return opener()

        def use() -> None:
            connections.give_back(connections.take(ANN, open_slowly, wait_s=WAIT_S))

        uses = [pool.submit(use) for _ in range(OPENING_MAX + 2)]
        may_open.set()
        for each in uses:
            each.result(WAIT_S)
        assert len(opener.ours) <= OPENING_MAX + 2
        assert len(connections) <= KEPT_PER_PEER_MAX


def test_waiting_fetch_ends_when_it_is_over_or_after_its_time() -> None:
    may_open, opens = threading.Event(), threading.Semaphore(0)
    with kept() as (connections, opener), ThreadPoolExecutor(OPENING_MAX) as pool:

        def open_slowly() -> SecureSocket:
            opens.release()
            assert may_open.wait(WAIT_S)
            return opener()

        uses = [
            pool.submit(connections.take, ANN, open_slowly, wait_s=0.0) for _ in range(OPENING_MAX)
        ]
        for _ in uses:
            assert opens.acquire(timeout=WAIT_S)
        with pytest.raises(PeerTooSlow):
            connections.take(ANN, opener, wait_s=0.0)
        answers = iter((True, False))
        with pytest.raises(PeerUnreachable, match="no longer needed"):
            connections.take(ANN, opener, wait_s=WAIT_S, wanted=lambda: next(answers))
        assert opener.ours == []
        may_open.set()
        for each in uses:
            each.result(WAIT_S)


def test_connections_are_neither_kept_nor_limited_after_the_end() -> None:
    with kept() as (connections, opener):
        one, other = opener(), opener()
        connections.give_back(one)
        connections.close()
        connections.give_back(other)
        assert (one.fileno(), other.fileno()) == (-1, -1)
        many = {id(connections.take(ANN, opener, wait_s=0.0)) for _ in range(2 * OPENING_MAX)}
        assert len(many) == 2 * OPENING_MAX


def test_second_fetch_uses_the_connection_of_the_first_one() -> None:
    store, mine = new_store(), new_store()
    chunks = [store.put_chunk(bytes([number]) * 100) for number in range(2)]
    with kept() as (connections, opener):

        def open_one() -> SecureSocket:
            connection = opener()
            server = ChunkServer(store)
            threads.append(threading.Thread(target=server, args=(opener.theirs[-1], {})))
            threads[-1].start()
            return connection

        def dial(source: PeerSource) -> SecureSocket:
            return connections.take(source.peer, open_one, wait_s=WAIT_S)

        threads = list[threading.Thread]()
        for chunk in chunks:
            fetch_chunks(
                mine,
                [chunk],
                [PeerSource()],
                dial,
                deadline_s=WAIT_S,
                give_back=connections.give_back,
            )
        assert [mine.has_chunk(each) for each in chunks] == [True, True]
        assert (len(threads), len(connections)) == (1, 1)
        connections.close()
        for each in threads:
            each.join(WAIT_S)


def test_connection_with_an_open_request_is_closed() -> None:
    """The source never answers, and the fetch reaches its deadline."""
    mine = new_store()
    chunk = digest_of(b"nobody has it")
    given_back = list[SecureSocket]()
    with kept() as (_, opener):
        with pytest.raises(TryLater):
            fetch_chunks(
                mine,
                [chunk],
                [PeerSource()],
                lambda source: opener(),
                deadline_s=0.05,
                give_back=given_back.append,
            )
        assert (given_back, [each.fileno() for each in opener.ours]) == ([], [-1])
    assert not mine.has_chunk(chunk)
