"""`scripts/compare` starts several processes that share its work. They stop together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from scripts.research.learning.__main__ import main

OURSELVES = os.getpid()


class Processes:
    """Stands in for the processes that `main` starts, and for its queue. `parent` has started this
    process. `answers` contains what the function `stop` of `main` returned."""

    def __init__(self) -> None:
        self.parent = 1000
        self.started: list[list[str]] = []
        self.terminated = 0
        self.answers: list[bool] = []
        self.during: Callable[[], object] = lambda: None

    def main(self, *arguments: str) -> None:
        main(arguments, queue=lambda *_: self, start=self.popen, parent=lambda: self.parent)

    def work(self, stop: Callable[[], bool]) -> None:
        self.answers.append(stop())
        self.during()
        self.answers.append(stop())

    def popen(self, command: list[str]) -> Processes:
        self.started.append(command)
        return self

    def terminate(self) -> None:
        self.terminated += 1

    def wait(self) -> None: ...


@pytest.fixture
def processes() -> Processes:
    return Processes()


def orphaned(processes: Processes) -> None:
    processes.parent = 1


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Restore the signal handlers that `main` sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_process_started_by_a_shell_outlives_the_shell(processes: Processes) -> None:
    processes.during = lambda: orphaned(processes)
    processes.main("codecs")
    assert processes.answers == [False, False]


def test_started_process_stops_with_the_process_that_started_it(processes: Processes) -> None:
    processes.during = lambda: orphaned(processes)
    processes.main("codecs", "--part-of", "1000")
    assert processes.answers == [False, True]


def test_started_process_whose_starter_is_gone_does_nothing(processes: Processes) -> None:
    processes.main("codecs", "--part-of", "999")
    assert processes.answers == [True, True]


def test_started_processes_get_the_same_options_and_stop_with_their_starter(
    processes: Processes,
) -> None:
    processes.during = lambda: signal.raise_signal(signal.SIGTERM)
    processes.main("codecs", "--processes", "3")
    words = ["codecs", "--processes", "3", "--processes", "1", "--part-of", str(OURSELVES)]
    assert [command[3:] for command in processes.started] == [words, words]
    assert (processes.answers, processes.terminated) == ([False, True], 2)


def test_time_limit_stops_every_process(processes: Processes) -> None:
    processes.main("codecs", "--minutes", "0")
    assert processes.answers == [True, True]
