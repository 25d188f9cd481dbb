"""Readers of the stream learn of a commit at once, and can cost only a bounded amount."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.web.hub import STEPS_MAX, ByteBudget
from p2ptrain.web.stream import CLIENTS_MAX, QUEUE_MAX, Client, Clients
from tests.web.serving import Events, served, step_rows

CLIENTS = 500
SMALL_BUFFER = 4096


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_commit_reaches_the_reader_of_the_stream(
    nursery: trio.Nursery, tmp_path: Path, encoding: str
) -> None:
    async with served(tmp_path, nursery) as page, await page.connect() as stream:
        await stream.send_all(page.request("/api/v1/stream", accept_encoding=encoding))
        events = Events(stream, compressed=encoding == "gzip")
        first = await events.next("state")
        page.writer.write(step_rows(6))
        step = await events.next("step")
        event = await events.next("event")
        later = await events.next("state")
    assert first["status"]["outer_step"] == 5
    assert (step["step"]["step"], len(step["peers"])) == (6, 3)
    assert set(step["peers"][0]) == {"step", "peer", "tokens", "train_ms", "name"}
    assert event["text"] == "A peer joined."
    assert later["serial"] > first["serial"]


async def test_reports_that_arrive_after_the_commit_are_sent_later(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with served(tmp_path, nursery) as page, await page.connect() as stream:
        await stream.send_all(page.request("/api/v1/stream"))
        events = Events(stream, compressed=False)
        await events.next("state")
        row, *reports = step_rows(6)
        page.writer.write([row])
        first = await events.next("step")
        page.writer.write(reports)
        page.clock.ahead_s = 6.0
        later = await events.next("step")
    assert (first["step"]["step"], first["peers"]) == (6, [])
    assert (later["step"]["step"], len(later["peers"])) == (6, 3)


async def test_node_that_catches_up_sends_its_newest_steps(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with served(tmp_path, nursery) as page, await page.connect() as stream:
        await stream.send_all(page.request("/api/v1/stream"))
        events = Events(stream, compressed=False)
        await events.next("state")
        page.writer.write([row for step in range(6, 106) for row in step_rows(step)])
        steps = [(await events.next("step"))["step"]["step"] for _ in range(STEPS_MAX)]
    assert steps == list(range(96, 106))


async def test_readers_above_the_limit_are_refused(nursery: trio.Nursery, tmp_path: Path) -> None:
    """500 clients connect. The server keeps 32 streams, and goes on answering."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with served(tmp_path, nursery) as page:
        served_streams, refused = 0, 0
        streams = []
        for _ in range(CLIENTS):
            stream = await page.connect()
            streams.append(stream)
            await stream.send_all(page.request("/api/v1/stream", accept_encoding="gzip"))
            first = await stream.receive_some(200)
            served_streams += b" 200 " in first
            refused += b" 503 " in first
        code, _, _ = await page.ask("/api/v1/state")
        assert len(page.hub.clients) == CLIENTS_MAX
        for stream in streams:
            await stream.aclose()
        with trio.fail_after(60):
            while len(page.hub.clients):
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert (served_streams, refused, code) == (CLIENTS_MAX, CLIENTS - CLIENTS_MAX, 200)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


async def test_connections_above_the_limit_are_closed(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with served(tmp_path, nursery, connections_max=2) as page:
        one, two = await page.connect(), await page.connect()
        await one.send_all(b"GET")
        await two.send_all(b"GET")
        async with await page.connect() as third:
            assert await third.receive_some(1) == b""
        await one.aclose()
        await two.aclose()


async def test_slow_reader_is_disconnected(nursery: trio.Nursery, tmp_path: Path) -> None:
    """The client asks for large answers and never reads them."""
    async with served(tmp_path, nursery, send_s=0.2) as page, await page.connect() as slow:
        request = page.request("/metrics", connection="keep-alive")
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(60):
            while True:
                await slow.send_all(request)
        assert (await page.ask("/run.txt"))[0] == 200


def test_client_that_does_not_read_is_dropped() -> None:
    clients = Clients()
    slow = clients.enter()
    assert slow is not None
    for _ in range(QUEUE_MAX):
        clients.offer(b"event")
    assert len(clients) == 1
    clients.offer(b"one too many")
    assert len(clients) == 0
    assert not slow.offer(b"later")


def test_number_of_clients_is_bounded() -> None:
    clients = Clients(clients_max=2)
    one, two = clients.enter(), clients.enter()
    assert isinstance(one, Client)
    assert two is not None
    assert clients.enter() is None
    clients.leave(one)
    assert clients.enter() is not None


def test_budget_of_bytes_delays_large_states_but_not_for_ever() -> None:
    budget = ByteBudget(bytes_per_s=100.0)
    assert not budget.allows(last_s=0.0, now=0.9)
    assert budget.allows(last_s=0.0, now=1.0)
    budget.spend(200, now=1.0)
    assert [budget.allows(1.0, now) for now in (2.0, 2.9, 3.0)] == [False, False, True]
    budget.spend(1_000_000, now=3.0)
    assert [budget.allows(3.0, now) for now in (7.9, 8.0)] == [False, True]
