"""Every async test has a deadline, and the check for leftover threads finds a thread that is still
running.
"""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from tests.conftest import busy_since, run_with_deadline


@pytest.fixture
async def started(nursery: trio.Nursery) -> trio.Event:
    event = trio.Event()
    nursery.start_soon(trio.sleep_forever)
    event.set()
    return event


async def test_every_async_test_has_the_deadline(
    request: pytest.FixtureRequest, started: trio.Event
) -> None:
    assert started.is_set()
    mark = next(request.node.iter_markers("trio"))
    assert mark.kwargs["run"].__name__ == run_with_deadline.__name__


@pytest.mark.parametrize("swallows", [False, True])
def test_hung_test_fails_and_shows_where_it_hangs(swallows: bool) -> None:
    async def hangs() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            if swallows:  # pytest-trio reports an interrupted fixture with a different error.
                raise RuntimeError("a fixture cancelled the test") from None
            raise

    clock = trio.testing.MockClock(autojump_threshold=0)
    with pytest.raises(trio.TooSlowError, match="not done after 240 s") as raised:
        run_with_deadline(hangs, clock=clock, instruments=[])
    cause = raised.value.__cause__
    assert isinstance(cause, RuntimeError if swallows else trio.Cancelled)


def test_failure_of_a_test_is_raised_unchanged() -> None:
    async def fails() -> None:
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        run_with_deadline(fails, clock=None, instruments=[])


def test_thread_that_is_still_running_is_found() -> None:
    before, end = set(threading.enumerate()), threading.Event()
    threads = [
        threading.Thread(target=end.wait, name=name) for name in ("leftover", "Trio thread 7")
    ]
    for thread in threads:
        thread.start()
    found = busy_since(before)
    end.set()
    for thread in threads:
        thread.join()
    assert found == threads[:1]
    assert busy_since(before) == []
