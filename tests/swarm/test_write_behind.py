"""Chunks are stored in the background: a slow disk does not block a connection, and a stuck disk
does not use up memory.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from p2ptrain.dataplane import plain_pair
from p2ptrain.errors import PeerError, StoreError, StoreFull
from p2ptrain.ids import PeerId
from p2ptrain.store import CHUNK_BYTES_MAX, MemoryDisk, Store, digest_of
from p2ptrain.swarm import fetch_chunks
from p2ptrain.swarm.lanes import Fetch, FetchPlan
from p2ptrain.swarm.wire import receive_request, send_response
from p2ptrain.swarm.write_behind import STORING_MAX, WriteBehind

DEADLINE_S = 100.0


class Turns(MemoryDisk):
    """A disk that syncs the first file only after the second file."""

    def __init__(self) -> None:
        super().__init__()
        self.files = 0
        self.counting = threading.Lock()
        self.second_synced = threading.Event()

    def sync(self, path: Path) -> None:
        with self.counting:
            self.files += 1
            number = self.files
        if number == 1:
            assert self.second_synced.wait(DEADLINE_S)
        super().sync(path)
        if number == 2:
            self.second_synced.set()


def test_buffer_that_was_given_back_is_reused() -> None:
    write_behind = WriteBehind(1)
    first = write_behind.buffer()
    for _ in range(3 * STORING_MAX):
        write_behind.give_back(first)
        assert write_behind.buffer() is first
    write_behind.close()


def test_lane_gives_its_buffer_back_when_it_ends() -> None:
    held: list[int] = []

    class Counting(WriteBehind):
        def buffer(self) -> memoryview:
            held.append(1)
            return super().buffer()

        def give_back(self, buffer: memoryview) -> None:
            held.pop()
            super().give_back(buffer)

    ours, far = plain_pair(PeerId("joiner"), PeerId("a"), deadline_s=DEADLINE_S)
    far.close()
    plan = FetchPlan(
        [digest_of(b"x")],
        [OneSource()],
        dial=lambda _: ours,
        more_after=lambda _: [],
        deadline_s=DEADLINE_S,
        stall_s=DEADLINE_S,
        streams_per_peer=1,
        progress=lambda _: None,
    )
    with pytest.raises(StoreError, match=r"no source has the chunks that are still missing \(1\)"):
        Fetch(Store(Path("/mine"), disk=MemoryDisk()), plan, Counting(1)).run()
    assert held == []


class OneSource:
    peer = PeerId("a")


def test_lane_reads_a_chunk_while_the_disk_stores_an_earlier_one() -> None:
    theirs = Store(Path("/theirs"), disk=MemoryDisk())
    wanted = [theirs.put_chunk(b"block %d" % number) for number in range(3)]
    disk = Turns()
    mine = Store(Path("/mine"), disk=disk)
    ours, far = plain_pair(PeerId("joiner"), PeerId("a"), deadline_s=DEADLINE_S)

    def serve() -> None:
        with pytest.raises(PeerError):
            while True:
                send_response(far, theirs.get_chunk(receive_request(far)))
        far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    report = fetch_chunks(mine, wanted, [OneSource()], lambda _: ours, deadline_s=DEADLINE_S)
    thread.join(DEADLINE_S)
    assert (report.chunks_fetched, disk.files) == (3, 3)
    assert [mine.get_chunk(digest) for digest in wanted] == [b"block 0", b"block 1", b"block 2"]


def test_lane_waits_when_all_buffers_are_being_stored() -> None:
    write_behind, disk_is_free = WriteBehind(2), threading.Event()

    def wait_for_the_disk() -> None:
        disk_is_free.wait()

    buffers = [write_behind.buffer() for _ in range(2 + STORING_MAX)]
    assert {len(buffer) for buffer in buffers} == {CHUNK_BYTES_MAX}
    stuck = [write_behind.store(buffer, wait_for_the_disk) for buffer in buffers[:STORING_MAX]]
    got: list[memoryview] = []
    waiting = threading.Thread(target=lambda: got.append(write_behind.buffer()))
    waiting.start()
    assert not any(put.done() for put in stuck)
    disk_is_free.set()
    waiting.join(DEADLINE_S)
    write_behind.close()
    assert all(put.done() for put in stuck)
    assert any(got[0] is buffer for buffer in buffers[:STORING_MAX])


def test_failed_write_is_reported_and_its_buffer_is_reused() -> None:
    write_behind = WriteBehind(1)
    buffers = [write_behind.buffer() for _ in range(1 + STORING_MAX)]

    def full() -> None:
        raise StoreFull("no room")

    told = write_behind.store(buffers[0], full)
    assert isinstance(told.exception(DEADLINE_S), StoreFull)
    assert write_behind.buffer() is buffers[0]
    write_behind.close()
