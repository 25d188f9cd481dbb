"""Run `async def` tests in trio, with a deadline, and see that they leave no thread behind."""

from __future__ import annotations

import inspect
import threading
from functools import partial

import pytest
import trio

from p2ptrain.node import loneliness

TEST_S = 240.0
"""Less than pytest's own limit, which ends the whole run."""

LINGER_S = 30.0
"""Longer than a dial of the swarm."""

THREADS_THAT_STAY = ("Trio thread", "_background_cleanup")
"""Threads that trio keeps for the next call, and a daemon thread of libp2p's own."""


@pytest.fixture(autouse=True)
def quick_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted node waits for as long as its namesake, if it lived, would need to speak."""
    monkeypatch.setattr(loneliness, "LOOK_S", 1.0)
    monkeypatch.setattr(loneliness, "ALARM_S", 1.0)


def lingering(before: set[threading.Thread]) -> list[str]:
    """Threads that somebody should have ended, begun since."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and not any(name in thread.name for name in THREADS_THAT_STAY)
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run = partial(function, **{name: pyfuncitem.funcargs[name] for name in names})
    before = set(threading.enumerate())

    async def bounded() -> None:
        with trio.fail_after(TEST_S):
            await run()
        await no_thread_lingers(before)

    trio.run(bounded, strict_exception_groups=True)
    return True


async def no_thread_lingers(before: set[threading.Thread]) -> None:
    """Some are left to end by a deadline of their own; none may stay."""
    never = trio.Event()
    with trio.move_on_after(LINGER_S):
        while lingering(before):
            with trio.move_on_after(0.05):
                await never.wait()
    assert lingering(before) == []
