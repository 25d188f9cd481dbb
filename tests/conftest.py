"""Rules for all tests: each async test has a deadline, and no generated example has one.

pytest-trio runs the async tests and fixtures. It ignores async fixtures that are autouse, so the
deadline is part of the function that runs a test.

Hypothesis gives an example 200 ms and a strategy a second, and fails a test that was slower once.
On a machine that others keep busy, such a limit says nothing about our code.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic

import pytest
import trio
from hypothesis import HealthCheck, settings

from p2ptrain.kernels import codecs

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

TEST_S = 240.0
"""Shorter than pytest's own limit (`faulthandler_timeout`), which ends the whole run."""

LINGER_S = 30.0
"""Longer than a dial of the swarm, which some threads wait for before they end."""

IDLE_THREADS = ("Trio thread", "_background_cleanup")
"""Threads that trio keeps for its next call, and a daemon thread of libp2p."""


VARIANT = os.environ.get("P2PTRAIN_TEST_KERNELS", "")
"""The kernels for calls that demand none, or nothing for the best. scripts/test_matrix sets it."""


def pytest_configure() -> None:
    """Have every call demand `VARIANT`. If the machine lacks it, all such calls fail."""
    chosen = codecs._index
    if VARIANT:
        vars(codecs)["_index"] = lambda demanded: chosen(demanded or VARIANT)


def run_with_deadline(
    test: Callable[[], Awaitable[None]],
    *,
    clock: trio.abc.Clock | None,
    instruments: Sequence[trio.abc.Instrument],
) -> None:
    """Run an async test and its async fixtures, which have `TEST_S` in all by the test's clock.

    Raises:
        TooSlowError: time ran out. Its cause shows where the test was then.
    """

    async def bounded() -> None:
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + TEST_S
            try:
                await test()
            except BaseException as exc:
                # pytest-trio reports an interrupted fixture without a word of the deadline.
                if scope.cancel_called:
                    raise trio.TooSlowError(f"not done after {TEST_S:.0f} s") from exc
                raise

    trio.run(bounded, clock=clock, instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have pytest-trio run each async test by `run_with_deadline`."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            # The first mark that names a runner wins; pytest-trio appends its own.
            item.add_marker(pytest.mark.trio(run=run_with_deadline), append=False)


@pytest.fixture
def no_thread_lingers() -> Iterator[None]:
    """Fail a test that leaves threads running. Some end by their own deadline, so wait for them."""
    before = set(threading.enumerate())
    yield
    patience_ends = monotonic() + LINGER_S
    while (busy := busy_since(before)) and monotonic() < patience_ends:
        busy[0].join(0.05)  # Not for longer: an idle thread of trio's lives on under another name.
    assert [thread.name for thread in busy] == []


def busy_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that were started since and that are not idle threads of a library."""
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not any(name in thread.name for name in IDLE_THREADS)
    ]
