"""Fetches of blobs and chunks: which peers are asked, what the status shows, and when a fetch is
given up."""

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


async def test_fetch_is_shown_in_the_status_until_it_ends(
    tmp_path: Path,
) -> None:
    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", admission="open") as other,
    ):
        blob = other.context.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, other)
        seen: list[tuple[str, str]] = []

        def journalled(event: str, **fields: object) -> None:
            if event == "state":
                seen.append((str(fields["state"]), r.context.shown.name))
                if fields["state"] == "fetching snapshot":
                    # During the fetch, the trainer begins to load.
                    r.context.state.set_state(Loading())

        r.context.journal.write = journalled  # type: ignore[method-assign]
        with trio.fail_after(20):
            await fetch.fetch(r.context, blob, shown=True)
        assert seen == [
            ("fetching snapshot", "starting"),
            ("loading", "starting"),
            ("loading", "loading"),
        ]
        assert r.context.shown == Loading()


async def test_peer_that_appears_during_a_fetch_is_asked_too(tmp_path: Path) -> None:
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
        first.context.plane.listener.handle(PURPOSE, takes_requests_and_never_answers)
        blob = second.context.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, first)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch.fetch, r.context, blob)
                await settled(lambda: asked == [blob])
                Neighbour(r, second)
                r.context.changes.notify_all()
        assert r.context.store.read_blob(blob) == b"x" * 5000


async def test_peer_that_sent_a_wrong_chunk_is_reported_and_avoided(tmp_path: Path) -> None:
    lies: list[str] = []

    def lies_whatever_it_is_asked(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        lies.append(receive_request(sock))
        send_response(sock, b"garbage")

    async with (
        rig(tmp_path / "a", admission="open") as r,
        rig(tmp_path / "b", admission="open") as liar,
        rig(tmp_path / "c", admission="open") as good,
    ):
        liar.context.plane.listener.handle(PURPOSE, lies_whatever_it_is_asked)
        blob = good.context.store.put_blob("snapshot", [b"x" * 5000], {})
        Neighbour(r, liar)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch.fetch, r.context, blob)
                await settled(lambda: blob in r.context.alerts)
                Neighbour(r, good)
                r.context.changes.notify_all()
        assert r.context.store.read_blob(blob) == b"x" * 5000
        assert lies == [blob]
        told = [(each["peer"], each["digest"]) for each in r.said("bad-chunk")]
        assert told == [(liar.context.me, blob)]


def brings(chunks_max: int, r: Rig) -> Callable[[SecureSocket, Mapping[str, object]], None]:
    """Return a handler that sends `chunks_max` chunks over each connection, and does not answer any
    later request."""

    def serve(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        for number in count():
            sock.set_deadline(30)
            digest = receive_request(sock)
            if number < chunks_max:
                send_response(sock, r.context.store.get_chunk(digest))

    return serve


@asynccontextmanager
async def beside_one_that(
    folder: Path, chunks_max: int, *, try_s: float = 3.0
) -> AsyncIterator[tuple[Rig, list[Digest]]]:
    """Open a node whose only peer answers `chunks_max` requests of each connection. Yield the node,
    and four chunks that only the peer has. A try ends after `try_s` seconds: three are enough for
    two chunks on a busy machine."""
    async with rig(folder / "a", admission="open") as r, rig(folder / "b", welcoming=True) as other:
        r.wait_for(fetch_limit_s=try_s)
        other.context.plane.listener.handle(PURPOSE, brings(chunks_max, other))
        Neighbour(r, other)
        yield r, [other.context.store.put_chunk(b"%d" % number) for number in range(4)]


async def test_fetch_from_a_stalled_source_can_be_given_up(tmp_path: Path) -> None:
    async with beside_one_that(tmp_path, chunks_max=0, try_s=0.1) as (r, chunks):
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch(r.context, chunks[0], unwanted=lambda: True)
        assert caught.value.code == "CKPT-NO-SOURCE"
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch_loose(r.context, chunks, unwanted=lambda: True)
        assert caught.value.code == "CKPT-NO-SOURCE"
        with trio.move_on_after(1) as waited:
            await fetch.fetch_loose(r.context, chunks)
        assert waited.cancelled_caught


async def test_patient_fetch_continues_with_a_slow_source(tmp_path: Path) -> None:
    async with beside_one_that(tmp_path, chunks_max=2) as (r, chunks):
        with trio.fail_after(20):
            await fetch.fetch_loose(r.context, chunks, unwanted=lambda: True)
        assert all(map(r.context.store.has_chunk, chunks))
        assert len(r.said("fetch-delayed")) >= 1


async def test_impatient_fetch_keeps_the_chunks_that_have_arrived(tmp_path: Path) -> None:
    async with beside_one_that(tmp_path, chunks_max=2) as (r, chunks):
        with trio.fail_after(20), pytest.raises(StoreError) as caught:
            await fetch.fetch_loose(r.context, chunks, unwanted=lambda: True, patient=False)
        assert caught.value.code == "CKPT-NO-SOURCE"
        assert sum(map(r.context.store.has_chunk, chunks)) == 2
