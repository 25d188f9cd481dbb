"""A node that has just started begins to fetch from the first peer it has heard of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import SecureSocket
from p2ptrain.errors import StoreError
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.observe.states import Loading
from p2ptrain.swarm import PURPOSE
from p2ptrain.swarm.wire import receive_request, send_response
from tests.node.rig import Neighbour, Rig, rig, settled


async def test_state_before_a_fetch_is_restored_afterwards(
    tmp_path: Path,
) -> None:
    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", admission="open") as other,
    ):
        blob = other.parts.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, other)
        seen: list[tuple[str, str]] = []
        standing = r.parts.standing

        def journalled(event: str, **fields: object) -> None:
            if event == "state":
                seen.append((str(fields["state"]), standing.shown.name))
                if fields["state"] == "fetching snapshot":
                    r.parts.set_state(Loading())  # Its trainer was started meanwhile.

        r.parts.journal.write = journalled  # type: ignore[method-assign]
        with trio.fail_after(20):
            await fetch.fetch(r.parts, blob, shown=True)
        assert seen == [
            ("fetching snapshot", "starting"),
            ("loading", "starting"),
            ("loading", "loading"),
        ]
        assert standing.shown == Loading()


async def test_peer_heard_during_a_fetch_is_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    asked: list[str] = []

    def takes_requests_and_never_answers(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        while True:
            sock.set_deadline(30)
            asked.append(receive_request(sock))

    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", admission="open") as first,
        rig(tmp_path / "c", admission="open") as second,
    ):
        first.parts.listener.handle(PURPOSE, takes_requests_and_never_answers)
        blob = second.parts.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, first)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch.fetch, r.parts, blob)
                await settled(lambda: asked == [blob])
                Neighbour(r, second)
                r.parts.changes.notify_all()
        assert r.parts.store.read_blob(blob) == b"x" * 5000


async def test_source_of_garbage_is_reported_and_avoided_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    lies: list[str] = []

    def lies_whatever_it_is_asked(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        lies.append(receive_request(sock))
        send_response(sock, b"garbage")

    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", admission="open") as liar,
        rig(tmp_path / "c", admission="open") as good,
    ):
        liar.parts.listener.handle(PURPOSE, lies_whatever_it_is_asked)
        blob = good.parts.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, liar)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch.fetch, r.parts, blob)
                await settled(lambda: blob in r.parts.standing.warnings)
                Neighbour(r, good)
                r.parts.changes.notify_all()
        assert r.parts.store.read_blob(blob) == b"x" * 5000
        assert lies == [blob]
        told = [(each["peer"], each["digest"]) for each in r.said("bad-chunk")]
        assert told == [(liar.parts.me, blob)]


def brings(chunks_max: int, r: Rig) -> Callable[[SecureSocket, Mapping[str, object]], None]:
    """Send this many chunks over each connection, and then nothing, however long the other side
    waits.
    """

    def serve(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        for number in count():
            sock.set_deadline(30)
            digest = receive_request(sock)
            if number < chunks_max:
                send_response(sock, r.parts.store.get_chunk(digest))

    return serve


@asynccontextmanager
async def beside_one_that(folder: Path, chunks_max: int) -> AsyncIterator[tuple[Rig, list[Digest]]]:
    """A node, and chunks of which its only peer `brings` some."""
    async with rig(folder / "a", admission="open") as r, rig(folder / "b") as other:
        other.parts.listener._gate._allowed = lambda peer: True
        other.parts.listener.handle(PURPOSE, brings(chunks_max, other))
        Neighbour(r, other)
        yield r, [other.parts.store.put_chunk(b"%d" % number) for number in range(4)]


@pytest.fixture
def _short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for two chunks on a busy machine."""
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    monkeypatch.setattr(fetch, "FETCH_S", 3.0)


async def test_fetch_from_a_stalled_source_may_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRY_S", 0.02)
    monkeypatch.setattr(fetch, "FETCH_S", 0.1)
    async with beside_one_that(tmp_path, chunks_max=0) as (r, chunks):
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch(r.parts, chunks[0], unwanted=lambda: True)
        assert caught.value.code == "CKPT-NO-SOURCE"
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch_loose(r.parts, chunks, unwanted=lambda: True)
        assert caught.value.code == "CKPT-NO-SOURCE"
        with trio.move_on_after(1) as waited:
            await fetch.fetch_loose(r.parts, chunks)
        assert waited.cancelled_caught


@pytest.mark.usefixtures("_short_tries")
async def test_patient_fetch_continues_with_a_slow_source(tmp_path: Path) -> None:
    async with beside_one_that(tmp_path, chunks_max=2) as (r, chunks):
        with trio.fail_after(20):
            await fetch.fetch_loose(r.parts, chunks, unwanted=lambda: True)
        assert all(map(r.parts.store.has_chunk, chunks))
        assert len(r.said("fetch-delayed")) >= 1


@pytest.mark.usefixtures("_short_tries")
async def test_impatient_fetch_keeps_the_chunks_that_have_arrived(tmp_path: Path) -> None:
    async with beside_one_that(tmp_path, chunks_max=2) as (r, chunks):
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch_loose(r.parts, chunks, unwanted=lambda: True, patient=False)
        assert caught.value.code == "CKPT-NO-SOURCE"
        assert sum(map(r.parts.store.has_chunk, chunks)) == 2
