"""Durable writes have their own threads, so votes never wait for other work. Everything that the
ledger's task waits for runs in these threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.ledger.messages.peer_reports import Joining
from p2ptrain.net import DialFailed, dialling
from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.names import Resolver
from p2ptrain.node.consensus import evidence_log
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.node.state.threads import durably
from tests.node.consensus.test_accusations import twice
from tests.node.rig import ANN, BOB, CAI, NewRig, settled


@asynccontextmanager
async def blocked_threads() -> AsyncIterator[tuple[trio.Nursery, threading.Event]]:
    """Open a nursery for tasks whose threads wait for the event, which is set at the end."""
    over = threading.Event()
    async with trio.open_nursery() as nursery:
        try:
            yield nursery, over
        finally:
            over.set()


async def block_shared_threads(over: threading.Event, nursery: trio.Nursery) -> None:
    """Keep all of trio's shared worker threads busy until `over` is set."""
    shared = trio.to_thread.current_default_thread_limiter()
    for _ in range(int(shared.total_tokens)):
        nursery.start_soon(trio.to_thread.run_sync, over.wait)
    await settled(lambda: not shared.available_tokens)


async def block_dns_threads(over: threading.Event, nursery: trio.Nursery) -> None:
    """Keep all threads for DNS lookups busy until `over` is set."""
    hanging: list[str] = []

    def hangs(address: Address) -> list[str]:
        hanging.append(address.host)
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no server answers")

    async def look_up(resolver: Resolver) -> None:
        with pytest.raises(DialFailed):
            await resolver.resolve(parse("/dns4/slow.example/tcp/1"), float("inf"))

    threads = dialling.GIVEN_LOOKUPS, dialling.MEMBERS_LOOKUPS, dialling.OTHERS_LOOKUPS
    for count in threads:
        resolver = Resolver(count, look_up=hangs)
        for _ in range(2 * count):
            nursery.start_soon(look_up, resolver)
    await settled(lambda: len(hanging) == sum(threads))


async def test_vote_is_written_while_all_shared_threads_are_busy() -> None:
    """An attacker once kept the shared threads busy with DNS lookups, so that votes waited for
    10 s."""
    written: list[str] = []
    async with blocked_threads() as (nursery, over):
        await block_shared_threads(over, nursery)
        with trio.fail_after(20):
            await durably(written.append, "a vote")
    assert written == ["a vote"]


async def test_ledger_task_makes_progress_while_all_other_threads_are_busy(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """The task writes votes, entries and evidence, shortens the log of votes, and checks whether
    old entries can be pruned."""
    r = await new_rig(tmp_path)
    r.surround(config=replace(r.context.config, keep_entries=16))
    context = r.context
    async with blocked_threads() as (blocked, over):
        await block_dns_threads(over, blocked)
        await block_shared_threads(over, blocked)
        nursery.start_soon(partial(run_ledger, context, vote_records_max=1))
        for peer in (ANN.peer, BOB.peer):
            await context.ledger.submit(Joining(peer))
            await settled(lambda peer=peer: context.ledger.snapshot.is_member(peer))  # type: ignore[misc]
        with trio.fail_after(20):
            await evidence_log.record_evidence(context, twice(CAI, r.run.id))
        assert len(evidence_log.load_evidence(context.home)) == 1
        await settled(lambda: context.ledger.vote_records == len(context.ledger.core.records()))
        await settled(lambda: len(list(context.ledger.chain_log)) == 2)
