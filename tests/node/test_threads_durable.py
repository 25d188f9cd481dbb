"""Durable writes have threads of their own."""

from __future__ import annotations

import threading

import trio

from p2ptrain.node.state.threads import durably


async def test_vote_is_written_while_all_shared_threads_are_busy() -> None:
    """The attack of the issue occupied them with DNS lookups, and votes waited for 10 s."""
    over = threading.Event()
    shared = trio.to_thread.current_default_thread_limiter()
    written: list[str] = []
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(int(shared.total_tokens)):
                nursery.start_soon(trio.to_thread.run_sync, over.wait)
            while shared.available_tokens:
                await trio.lowlevel.checkpoint()
            with trio.fail_after(60):
                await durably(written.append, "a vote")
            over.set()
    finally:
        over.set()
    assert written == ["a vote"]
