"""Rules for all tests: each async test has a deadline, and generated examples have none.

pytest-trio runs the async tests and fixtures. It ignores autouse async fixtures, so the deadline is
part of the function that runs a test.

By default Hypothesis allows an example 200 ms and a strategy one second, and fails a test that
exceeds a limit once. On a busy machine, such a limit says nothing about our code.
"""

from __future__ import annotations

import inspect
import os
import signal
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
"""Time limit in seconds of one test. It is shorter than pytest's own limit
(`faulthandler_timeout`), which ends the entire run."""

LINGER_S = 30.0
"""Time limit in seconds for a test's threads to end. It is longer than a connection attempt of the
swarm, because some threads wait for such an attempt before they end."""

IDLE_THREADS = ("Trio thread", "_background_cleanup")
"""Parts of the names of threads that may keep running: those that trio keeps for its next call, and
a daemon thread of libp2p."""


VARIANT = os.environ.get("P2PTRAIN_TEST_KERNELS", "")
"""The kernel variant for calls that do not request one; empty for the best. scripts/test_matrix
sets it."""


def pytest_configure() -> None:
    """Make every kernel call request `VARIANT`. If the machine lacks it, all such calls fail.

    Tests send SIGINT to processes. Processes ignore it if their parent does, as do the commands
    that a shell runs in the background.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = codecs._index
    if VARIANT:
        vars(codecs)["_index"] = lambda demanded: chosen(demanded or VARIANT)


def run_with_deadline(
    test: Callable[[], Awaitable[None]],
    *,
    clock: trio.abc.Clock | None,
    instruments: Sequence[trio.abc.Instrument],
) -> None:
    """Run an async test and its async fixtures, for at most `TEST_S` in total by the test's clock.

    Raises:
        TooSlowError: time ran out. Its cause shows where the test was at that time.
    """

    async def bounded() -> None:
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + TEST_S
            try:
                await test()
            except BaseException as exc:
                # pytest-trio reports an interrupted fixture without mentioning the deadline.
                if scope.cancel_called:
                    raise trio.TooSlowError(f"not done after {TEST_S:.0f} s") from exc
                raise

    trio.run(bounded, clock=clock, instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make pytest-trio run each async test by `run_with_deadline`."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            # The first mark that names a runner takes precedence; pytest-trio appends its own.
            item.add_marker(pytest.mark.trio(run=run_with_deadline), append=False)


@pytest.fixture
def no_thread_lingers() -> Iterator[None]:
    """Fail a test that leaves threads running. Some threads end by their own deadline, so wait for
    `LINGER_S` at most."""
    before = set(threading.enumerate())
    yield
    patience_ends = monotonic() + LINGER_S
    while (busy := busy_since(before)) and monotonic() < patience_ends:
        # Wait only briefly: a trio thread that becomes idle does not end, but changes its name.
        busy[0].join(0.05)
    assert [thread.name for thread in busy] == []


def busy_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that are not in `before` and that are not idle threads of a library."""
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not any(name in thread.name for name in IDLE_THREADS)
    ]
