"""Fetching from several sources, some of which are unreachable, slow, silent, incomplete or
hostile.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.dataplane import Credentials, Endpoint, Listener, SecureSocket, dial, plain_pair
from p2ptrain.errors import (
    ManifestInvalid,
    P2PTrainError,
    PeerUnreachable,
    StoreError,
    StoreFull,
    TryLater,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId
from p2ptrain.state import OuterState
from p2ptrain.store import BlobManifest, MemoryDisk, Store, digest_of
from p2ptrain.swarm import (
    PURPOSE,
    ChunkServer,
    DropReason,
    FetchHandle,
    FetchProgress,
    fetch_blob,
    fetch_chunks,
)
from p2ptrain.swarm.patience import Patience
from p2ptrain.swarm.wire import receive_request, send_response

DEADLINE_S = 100.0
"""Time limit in seconds. The fetches take milliseconds on an idle machine."""
CHUNKS = 24
DATA = b"".join(b"%04d" % number * 256 for number in range(CHUNKS))


def new_store(disk: MemoryDisk | None = None) -> Store:
    return Store(Path("/store"), disk=disk or MemoryDisk(), chunk_bytes=1024)


@dataclass
class FakeSource:
    """A peer from which chunks are fetched. `behave` handles each connection; None refuses them."""

    peer: PeerId
    behave: Behave | None
    asked: list[Digest] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)
    leaves: threading.Event = field(default_factory=threading.Event)


Behave = Callable[[FakeSource, SecureSocket], object]
Answer = Callable[[SecureSocket, Digest], object]
Dialled = Callable[[FakeSource], SecureSocket]
Seed = tuple[Store, Digest]


def fake(peer: str, behave: Behave | None) -> FakeSource:
    return FakeSource(PeerId(peer), behave)


@pytest.fixture
def dialled() -> Iterator[Dialled]:
    """Return the `dial` function to pass to a fetch. After the test, check that every connection
    has ended.
    """
    threads: list[threading.Thread] = []

    def connect(source: FakeSource) -> SecureSocket:
        behave = source.behave
        if behave is None:
            raise PeerUnreachable("refused: nothing listens there", peer=source.peer)
        ours, theirs = plain_pair(PeerId("joiner"), source.peer, deadline_s=DEADLINE_S)

        def serve() -> None:
            with suppress(P2PTrainError):
                behave(source, theirs)
            theirs.close()

        thread = threading.Thread(target=serve)
        thread.start()
        threads.append(thread)
        return ours

    yield connect
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.fixture
def seed_disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def seed(seed_disk: MemoryDisk) -> Seed:
    """Return a store that holds the blob, and the blob's digest."""
    store = new_store(seed_disk)
    return store, store.put_blob("snapshot", [DATA], {})


def good(store: Store, *, chunks_max: int | None = None) -> Behave:
    """Serve the chunks of the store. After `chunks_max` answers, disconnect in the middle of the
    next one.
    """

    def behave(source: FakeSource, sock: SecureSocket) -> None:
        while True:
            digest = receive_request(sock)
            source.asked.append(digest)
            if chunks_max is not None and len(source.asked) > chunks_max:
                sock.send_all(b"\0\0\0\4\0" + bytes(100))
                return
            send_response(sock, store.get_chunk(digest) if store.has_chunk(digest) else None)

    return behave


def answering(make: Answer) -> Behave:
    """Answer every request by a call of `make` with the socket and the digest."""

    def behave(source: FakeSource, sock: SecureSocket) -> None:
        while True:
            digest = receive_request(sock)
            source.asked.append(digest)
            make(sock, digest)

    return behave


def answering_by(behave: Behave, *, before: Callable[[], object] = lambda: None) -> Behave:
    """Call `before` on each connection, then behave like `behave`."""

    def first(source: FakeSource, sock: SecureSocket) -> None:
        before()
        behave(source, sock)

    return first


def silent(source: FakeSource, sock: SecureSocket) -> None:
    """Accept requests and never answer."""
    while True:
        source.asked.append(receive_request(sock))
        source.was_asked.set()


def dripping(source: FakeSource, sock: SecureSocket) -> None:
    """Send each chunk a byte at a time, with short pauses."""
    while True:
        source.asked.append(receive_request(sock))
        sock.send_all(b"\0\0\0\4\0")
        source.was_asked.set()
        for _ in range(1024):
            sock.send_all(b"\0")
            source.leaves.wait(0.02)


def test_blob_arrives_complete_from_one_source(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    source = fake("a", good(store))
    report = fetch_blob(mine, digest, [source], dialled, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    assert report.chunks_fetched == CHUNKS + 1
    assert report.bytes_by_peer == {"a": len(DATA) + len(store.get_chunk(digest))}
    assert report.dropped == ()
    assert len(source.asked) == CHUNKS + 1
    assert report.seconds > 0


def test_several_sources_serve_at_the_same_time(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    mine.put_chunk(store.get_chunk(digest))
    together = threading.Barrier(3)

    def behave(source: FakeSource, sock: SecureSocket) -> None:
        first = receive_request(sock)
        # The barrier opens only if all three sources are asked before any source answers.
        together.wait(DEADLINE_S)
        send_response(sock, store.get_chunk(first))
        good(store)(source, sock)

    sources = [fake(name, behave) for name in "abc"]
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    assert set(report.bytes_by_peer) == {"a", "b", "c"}
    assert report.bytes_fetched == len(DATA)


def test_several_streams_to_one_peer_share_the_requests(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    source = fake("a", good(store))
    report = fetch_blob(mine, digest, [source], dialled, deadline_s=DEADLINE_S, streams_per_peer=3)
    assert mine.read_blob(digest) == DATA
    assert list(report.bytes_by_peer) == ["a"]


def wrong_bytes(sock: SecureSocket, digest: Digest) -> None:
    send_response(sock, b"garbage")


def oversize(sock: SecureSocket, digest: Digest) -> None:
    sock.send_all(b"\0" + (2**31).to_bytes(4, "big"))


def odd_status(sock: SecureSocket, digest: Digest) -> None:
    sock.send_all(b"\x09" + bytes(4))


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (wrong_bytes, DropReason.CORRUPT),
        (oversize, DropReason.PROTOCOL),
        (odd_status, DropReason.PROTOCOL),
    ],
)
@pytest.mark.parametrize("streams", [1, 2])
def test_hostile_source_is_dropped_and_blamed_and_the_fetch_succeeds(
    seed: Seed, dialled: Dialled, make: Answer, fault: DropReason, streams: int
) -> None:
    store, digest = seed
    mine = new_store()
    mine.put_chunk(store.get_chunk(digest))
    hostile_was_asked = threading.Event()

    def hostile(sock: SecureSocket, asked: Digest) -> None:
        hostile_was_asked.set()
        make(sock, asked)

    def patient(source: FakeSource, sock: SecureSocket) -> None:
        hostile_was_asked.wait(DEADLINE_S)
        good(store)(source, sock)

    sources = [fake("bad", answering(hostile)), fake("good", patient)]
    report = fetch_blob(
        mine, digest, sources, dialled, deadline_s=DEADLINE_S, streams_per_peer=streams
    )
    assert mine.read_blob(digest) == DATA
    assert [(drop.peer, drop.fault) for drop in report.dropped] == [("bad", fault)]
    assert report.blamed == ("bad",)
    assert "bad" not in report.bytes_by_peer


def test_hostile_peer_loses_its_other_connections_too(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    mine.put_chunk(store.get_chunk(digest))
    lied = threading.Event()
    liars = iter([True, False])

    def two_faced(source: FakeSource, sock: SecureSocket) -> None:
        if next(liars):
            send_response(sock, b"lie" * len(receive_request(sock)))
            lied.set()
            silent(source, sock)  # read on: closing with unread requests would discard the lie
        else:
            after_the_lie(source, sock)

    def after_the_lie(source: FakeSource, sock: SecureSocket) -> None:
        lied.wait(DEADLINE_S)
        good(store)(source, sock)

    sources = [fake("two-faced", two_faced), fake("good", after_the_lie)]
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S, streams_per_peer=2)
    assert mine.read_blob(digest) == DATA
    assert [(drop.peer, drop.fault) for drop in report.dropped] == [
        ("two-faced", DropReason.CORRUPT)
    ]


def test_source_that_dies_midway_is_dropped_without_blame(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    mine.put_chunk(store.get_chunk(digest))
    dead = threading.Event()

    def dies(source: FakeSource, sock: SecureSocket) -> None:
        try:
            good(store, chunks_max=5)(source, sock)
        finally:
            dead.set()

    def patient(source: FakeSource, sock: SecureSocket) -> None:
        dead.wait(DEADLINE_S)
        good(store)(source, sock)

    sources = [fake("dying", dies), fake("good", patient)]
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    assert [(drop.peer, drop.fault) for drop in report.dropped] == [("dying", DropReason.LOST)]
    assert report.blamed == ()
    assert report.chunks_fetched == CHUNKS


def test_fetch_survives_garbage_and_a_death_with_two_good_sources(
    seed: Seed, dialled: Dialled
) -> None:
    store, digest = seed
    mine = new_store()
    sources = [
        fake("garbage", answering(wrong_bytes)),
        fake("dying", good(store, chunks_max=3)),
        fake("good", good(store)),
        fake("gone", None),
        fake("fine", good(store)),
    ]
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    faults = {drop.peer: drop.fault for drop in report.dropped}
    assert (
        faults.items()
        <= {
            "garbage": DropReason.CORRUPT,
            "dying": DropReason.LOST,
            "gone": DropReason.UNREACHABLE,
        }.items()
    )


@pytest.mark.parametrize("behave", [silent, dripping])
def test_silent_or_dripping_source_does_not_delay_the_fetch(
    seed: Seed, dialled: Dialled, behave: Behave
) -> None:
    store, digest = seed
    mine = new_store()
    mine.put_chunk(store.get_chunk(digest))
    mute = fake("mute", behave)

    def patient(source: FakeSource, sock: SecureSocket) -> None:
        mute.was_asked.wait(DEADLINE_S)
        good(store)(source, sock)

    sources = [mute, fake("good", patient)]
    short = Patience(least_s=0.01)
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S, patience=short)
    mute.leaves.set()
    assert mine.read_blob(digest) == DATA
    assert report.bytes_by_peer == {"good": len(DATA)}
    assert len(mute.asked) == 1
    assert report.seconds < 10  # the dripping source takes 20 s for its chunk


def test_several_incomplete_sources_together_are_enough(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    parts = [new_store() for _ in range(3)]
    for number, chunk in enumerate(store.manifest(digest).chunks):
        parts[number % 3].put_chunk(store.get_chunk(chunk))
    parts[1].put_chunk(store.get_chunk(digest))
    mine = new_store()
    sources = [fake(name, good(part)) for name, part in zip("abc", parts, strict=True)]
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    assert report.dropped == ()
    assert {peer: count // 1024 for peer, count in report.bytes_by_peer.items()} == {
        "a": 8,
        "b": 8 + len(store.get_chunk(digest)) // 1024,
        "c": 8,
    }


def test_fetch_resumes_with_the_missing_chunks(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    dying = fake("dying", good(store, chunks_max=20))
    with pytest.raises(StoreError) as caught:
        fetch_blob(mine, digest, [dying], dialled, deadline_s=DEADLINE_S)
    assert caught.value.code == "CKPT-NO-SOURCE"
    missing = mine.missing_chunks(digest)
    # The source sent twenty answers: the manifest and nineteen chunks. Up to sixteen of these
    # chunks can be lost with the connection.
    assert CHUNKS - 19 <= len(missing) < CHUNKS - 2
    source = fake("good", good(store))
    report = fetch_blob(mine, digest, [source], dialled, deadline_s=DEADLINE_S)
    assert sorted(source.asked) == sorted(missing)
    assert report.chunks_fetched == len(missing)
    assert mine.read_blob(digest) == DATA


def test_complete_blob_is_not_requested_again(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    source = fake("a", good(store))
    report = fetch_blob(store, digest, [source], dialled, deadline_s=DEADLINE_S)
    assert (report.chunks_fetched, source.asked) == (0, [])


def test_missing_chunk_is_reported_with_the_fault_of_each_source(
    seed: Seed, dialled: Dialled
) -> None:
    _, digest = seed
    sources = [
        fake("empty", good(new_store())),
        fake("gone", None),
        fake("liar", answering(wrong_bytes)),
    ]
    with pytest.raises(StoreError) as caught:
        fetch_blob(new_store(), digest, sources, dialled, deadline_s=DEADLINE_S)
    error = caught.value
    assert error.code == "CKPT-NO-SOURCE"
    assert sorted(line.split()[0] for line in error.evidence) == ["empty", "gone", "liar"]
    assert any("nothing listens there" in line for line in error.evidence)
    assert error.likely
    assert error.do


def test_lying_source_is_blamed_even_if_the_fetch_fails(seed: Seed, dialled: Dialled) -> None:
    _, digest = seed
    handle = FetchHandle[FakeSource]()
    assert list(handle.blamed) == []
    with pytest.raises(StoreError):
        fetch_blob(
            new_store(),
            digest,
            [fake("liar", answering(wrong_bytes)), fake("gone", None)],
            dialled,
            deadline_s=DEADLINE_S,
            handle=handle,
        )
    assert list(handle.blamed) == ["liar"]


def test_fetch_without_sources_fails_at_once(seed: Seed, dialled: Dialled) -> None:
    with pytest.raises(StoreError) as caught:
        fetch_blob(new_store(), seed[1], [], dialled, deadline_s=DEADLINE_S)
    assert caught.value.code == "CKPT-NO-SOURCE"
    assert caught.value.evidence == ("no source is known",)


def test_missing_chunk_does_not_stop_the_fetch_of_other_chunks(
    seed: Seed, seed_disk: MemoryDisk, dialled: Dialled
) -> None:
    store, digest = seed
    lost = store.manifest(digest).chunks[3]
    seed_disk.remove(store.chunk_path(lost))
    mine = new_store()
    with pytest.raises(StoreError) as caught:
        fetch_blob(mine, digest, [fake("a", good(store))], dialled, deadline_s=DEADLINE_S)
    assert caught.value.code == "CKPT-NO-SOURCE"
    assert mine.missing_chunks(digest) == [lost]


def test_slow_manifest_is_soon_requested_from_another_source(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mute = fake("mute", silent)

    def patient(source: FakeSource, sock: SecureSocket) -> None:
        mute.was_asked.wait(DEADLINE_S)
        good(store)(source, sock)

    started = time.monotonic()
    mine = new_store()
    mine.put_blob("snapshot", [DATA[1024:]], {})  # all chunks except the first
    sources = [mute, fake("good", patient)]
    long = Patience(unknown_s=DEADLINE_S)
    fetch_blob(mine, digest, sources, dialled, deadline_s=2 * DEADLINE_S, patience=long)
    assert time.monotonic() - started < long.unknown_s
    assert mine.holds_blob(digest)


def test_single_silent_source_is_dropped_as_too_slow(seed: Seed, dialled: Dialled) -> None:
    with pytest.raises(StoreError) as caught:
        fetch_blob(
            new_store(),
            seed[1],
            [fake("mute", silent)],
            dialled,
            deadline_s=DEADLINE_S,
            stall_s=0.05,
        )
    assert caught.value.code == "CKPT-NO-SOURCE"
    assert DropReason.SLOW.value in caught.value.evidence[0]


def test_deadline_ends_a_fetch_that_makes_no_progress(seed: Seed, dialled: Dialled) -> None:
    with pytest.raises(TryLater) as caught:
        fetch_blob(new_store(), seed[1], [fake("mute", silent)], dialled, deadline_s=0.05)
    assert caught.value.code == "FETCH-TIMEOUT"


@pytest.mark.parametrize("early", [True, False])
def test_fetch_can_be_cancelled_before_and_while_it_runs(
    seed: Seed, dialled: Dialled, early: bool
) -> None:
    handle = FetchHandle[FakeSource]()

    def behave(source: FakeSource, sock: SecureSocket) -> None:
        receive_request(sock)
        handle.cancel()
        receive_request(sock)

    if early:
        handle.cancel()
    with pytest.raises(TryLater) as caught:
        fetch_blob(
            new_store(),
            seed[1],
            [fake("a", behave)],
            dialled,
            deadline_s=DEADLINE_S,
            handle=handle,
        )
    assert caught.value.code == "FETCH-CANCELLED"


def test_source_found_during_the_fetch_is_used(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    handle, late_was_asked = FetchHandle[FakeSource](), threading.Event()

    def late_comes(source: FakeSource, sock: SecureSocket) -> None:
        chunk = receive_request(sock)
        send_response(sock, store.get_chunk(chunk))
        late_was_asked.set()
        good(store)(source, sock)

    late = fake("late", late_comes)

    def first(source: FakeSource, sock: SecureSocket) -> None:
        manifest = receive_request(sock)
        handle.offer(late)
        send_response(sock, store.get_chunk(manifest))
        late_was_asked.wait(DEADLINE_S)
        good(store)(source, sock)

    mine = new_store()
    report = fetch_blob(
        mine, digest, [fake("first", first)], dialled, deadline_s=DEADLINE_S, handle=handle
    )
    assert mine.read_blob(digest) == DATA
    assert set(report.bytes_by_peer) == {"first", "late"}
    assert late_was_asked.is_set()


def test_source_can_be_offered_before_the_fetch_begins(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    handle, mine = FetchHandle[FakeSource](), new_store()
    handle.offer(fake("a", good(store)))
    report = fetch_blob(mine, digest, [], dialled, deadline_s=DEADLINE_S, handle=handle)
    assert list(report.bytes_by_peer) == ["a"]


@pytest.mark.parametrize("at_first", ["unreachable", "lost"])
def test_unreachable_source_is_retried_when_offered_again_but_a_liar_is_not(
    seed: Seed, dialled: Dialled, at_first: str
) -> None:
    store, digest = seed
    handle, mine = FetchHandle[FakeSource](), new_store()
    mine.put_chunk(store.get_chunk(digest))
    liar, late = fake("liar", answering(wrong_bytes)), fake("late", None)
    met = threading.Event()

    def connect(source: FakeSource) -> SecureSocket:
        if source is late and late.behave is None:
            late.behave = answering_by(good(store), before=met.set)
            if at_first == "lost":
                return dialled(fake("late", lambda *_: None))
            raise PeerUnreachable("it does not know us yet", peer=late.peer)
        return dialled(source)

    def first(source: FakeSource, sock: SecureSocket) -> None:
        chunk = receive_request(sock)
        for _ in range(10_000):
            handle.offer(late)
            handle.offer(liar)
            if met.wait(0.01):
                break
        send_response(sock, store.get_chunk(chunk))
        good(store)(source, sock)

    sources = [fake("first", first), liar, late]
    report = fetch_blob(mine, digest, sources, connect, deadline_s=DEADLINE_S, handle=handle)
    assert mine.read_blob(digest) == DATA
    assert {drop.peer: drop.fault for drop in report.dropped}.get(late.peer) is None
    assert len(liar.asked) <= 1


def test_source_that_is_still_being_dialled_does_not_delay_the_fetch(
    seed: Seed, dialled: Dialled
) -> None:
    store, digest = seed
    never, left = threading.Event(), threading.Event()

    def connect(source: FakeSource) -> SecureSocket:
        if source.peer == "black hole":
            never.wait(DEADLINE_S)
            left.set()
        return dialled(source)

    mine = new_store()
    sources = [fake("black hole", None), fake("good", good(store))]
    report = fetch_blob(mine, digest, sources, connect, deadline_s=DEADLINE_S)
    assert mine.read_blob(digest) == DATA
    assert report.dropped == ()
    assert not left.is_set()
    never.set()
    assert left.wait(DEADLINE_S)


def test_progress_is_reported_for_each_chunk_up_to_the_end(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    seen: list[FetchProgress] = []
    source = fake("a", good(store))
    fetch_blob(new_store(), digest, [source], dialled, deadline_s=DEADLINE_S, progress=seen.append)
    assert [progress.chunks_fetched for progress in seen] == list(range(1, CHUNKS + 2))
    assert seen[0].chunks_left == CHUNKS
    assert seen[-1].fraction == 1.0
    assert seen[-1].bytes_fetched == len(DATA) + len(store.get_chunk(digest))


def test_full_disk_stops_the_fetch_with_its_own_error(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    disk = MemoryDisk()
    mine = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    disk.fail_at, disk.failure, disk.forever = len(disk.writes) + 30, errno.ENOSPC, True
    sources = [fake(name, good(store)) for name in "ab"]
    with pytest.raises(StoreFull):
        fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    disk.fail_at = 0
    held = CHUNKS - len(mine.missing_chunks(digest))
    assert held > 0
    report = fetch_blob(mine, digest, sources, dialled, deadline_s=DEADLINE_S)
    assert report.chunks_fetched == CHUNKS - held
    assert mine.read_blob(digest) == DATA


def test_digest_that_is_not_of_a_blob_is_reported(dialled: Dialled) -> None:
    store = new_store()
    digest = store.put_chunk(b"a data block")
    source = fake("a", good(store))
    with pytest.raises(ManifestInvalid):
        fetch_blob(new_store(), digest, [source], dialled, deadline_s=DEADLINE_S)
    report = fetch_chunks(new_store(), [digest], [source], dialled, deadline_s=DEADLINE_S)
    assert report.chunks_fetched == 1


def test_inconsistent_manifest_is_refused_before_its_chunks_are_requested(dialled: Dialled) -> None:
    store = new_store()
    chunk = store.put_chunk(b"x" * 1024)
    digest = store.put_chunk(BlobManifest("index", 1500, 1024, (chunk, chunk), {}).to_wire())
    source = fake("a", good(store))
    with pytest.raises(ManifestInvalid):
        fetch_blob(new_store(), digest, [source], dialled, deadline_s=DEADLINE_S)
    assert source.asked == [digest]


def test_single_chunks_are_fetched_once_and_only_if_missing(dialled: Dialled) -> None:
    store, mine = new_store(), new_store()
    blocks = [store.put_chunk(b"block %d" % number) for number in range(5)]
    mine.put_chunk(b"block 2")
    source = fake("a", good(store))
    wanted = [*blocks, *blocks]
    report = fetch_chunks(mine, wanted, [source], dialled, deadline_s=DEADLINE_S)
    assert report.chunks_fetched == 4
    assert [mine.get_chunk(block) for block in blocks] == [b"block %d" % n for n in range(5)]
    assert digest_of(b"block 2") not in source.asked


def test_garbage_collection_during_a_fetch_removes_nothing(seed: Seed, dialled: Dialled) -> None:
    store, digest = seed
    mine = new_store()
    collected = []

    def collect(progress: FetchProgress) -> None:
        everything = [digest for fan in range(mine.fans) for digest in mine.chunks_in(fan)]
        mine.collect_garbage([], keep_chunks=everything)  # the next one finds no new chunks
        collected.append(mine.collect_garbage([]).chunks)

    source = fake("a", good(store))
    fetch_blob(mine, digest, [source], dialled, deadline_s=DEADLINE_S, progress=collect)
    assert collected == [0] * (CHUNKS + 1)
    assert mine.holds_blob(digest)


def test_joiner_over_real_tls_gets_a_members_state_bit_for_bit() -> None:
    """Two members serve a snapshot over TLS. A joiner fetches it from both and loads it."""
    member_store, joiner_store = new_store(), new_store()
    state, joined = OuterState(5000), OuterState(5000)
    state.theta[:] = np.random.default_rng(1).standard_normal(5000, dtype=np.float32)
    digest = state.write_snapshot(member_store, {"step": 3})
    joiner = Credentials.create(Identity.from_seed(bytes([9]) * 32))
    with ExitStack() as stack:
        endpoints = []
        for number in (1, 2):
            member = Credentials.create(Identity.from_seed(bytes([number]) * 32))
            listener = stack.enter_context(
                Listener(member, "127.0.0.1", 0, allowed=lambda peer: True)
            )
            listener.trust_certificate(joiner.certificate_der)
            listener.handle(PURPOSE, ChunkServer(member_store))
            endpoints.append(Endpoint(member.peer, *listener.address, member.certificate_der))
        report = fetch_blob(
            joiner_store,
            digest,
            endpoints,
            lambda endpoint: dial(joiner, endpoint, {"purpose": PURPOSE}, deadline_s=DEADLINE_S),
            deadline_s=DEADLINE_S,
        )
    joined.load_snapshot(joiner_store, digest)
    assert joined.digest() == state.digest()
    assert report.bytes_fetched > 20_000
    assert set(report.bytes_by_peer) <= {endpoint.peer for endpoint in endpoints}
