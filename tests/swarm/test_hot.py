"""Recently requested chunks are served from memory, and this memory is bounded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from p2ptrain.errors import ChunkMissing
from p2ptrain.ids import Digest
from p2ptrain.swarm import HotChunks


@dataclass
class Counted:
    """A source of chunks that records which chunks were read."""

    read: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    before: Callable[[], object] = lambda: None

    def get_chunk(self, digest: Digest) -> bytes:
        self.read.append(digest)
        self.before()
        if digest in self.missing:
            raise ChunkMissing(f"chunk {digest} is not here")
        return digest.encode() * 10


def asked(hot: HotChunks, names: str) -> list[bytes]:
    return [hot.get_chunk(Digest(name)) for name in names]


def test_recently_requested_chunk_is_read_from_disk_only_once() -> None:
    source = Counted()
    first, *_, again = asked(HotChunks(source, bytes_max=20), "abaaba")
    assert again is first
    assert source.read == ["a", "b"]


def test_least_recently_requested_chunk_is_evicted() -> None:
    source = Counted()
    asked(HotChunks(source, bytes_max=20), "abacab")
    assert source.read == ["a", "b", "c", "b"]


def test_large_chunk_evicts_only_as_many_chunks_as_needed() -> None:
    source = Counted()
    hot = HotChunks(source, bytes_max=30)
    asked(hot, "abc")
    hot.get_chunk(Digest("dd"))  # 20 bytes: there is room for this chunk and for `c`.
    asked(hot, "cb")
    assert source.read == ["a", "b", "c", "dd", "b"]


def test_chunk_too_large_to_keep_is_still_served() -> None:
    source = Counted()
    assert asked(HotChunks(source, bytes_max=9), "aa") == [b"a" * 10] * 2
    assert source.read == ["a", "a"]


def test_missing_chunk_is_looked_for_again_each_time() -> None:
    source = Counted(missing={"a"})
    hot = HotChunks(source)
    with pytest.raises(ChunkMissing):
        hot.get_chunk(Digest("a"))
    source.missing.clear()
    assert asked(hot, "a") == [b"a" * 10]


@pytest.mark.parametrize("fails", [False, True])
def test_only_one_of_many_threads_that_want_a_chunk_reads_it(fails: bool) -> None:
    """If the first thread fails to read the chunk, the next thread tries."""
    begun, go_on = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        go_on.wait()

    source = Counted(before=before, missing={"a"} if fails else set())
    hot, found = HotChunks(source), list[bytes | str]()

    def want() -> None:
        try:
            found.append(hot.get_chunk(Digest("a")))
        except ChunkMissing:
            found.append("missing")
            source.missing.clear()

    threads = [threading.Thread(target=want) for _ in range(5)]
    for thread in threads:
        thread.start()
        begun.wait()  # the first thread is reading before the other threads start
    go_on.set()
    for thread in threads:
        thread.join()
    outcomes = ["missing" if fails else b"a" * 10] + [b"a" * 10] * 4
    assert Counter(found) == Counter(outcomes)
    assert source.read == ["a"] * (2 if fails else 1)
