"""Threads that take turns in an order chosen by a seed, so that an interleaving can be replayed.

`Turns` replaces the executor on which a store writes chunks in parallel. Only one thread runs at a
time: a thread of `Turns`, or the main thread. At each write and sync of a `TurnsDisk`, another
thread can get the turn. A simulated crash can therefore happen with any mixture of begun, written
and synced chunks.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from p2ptrain.store import MemoryDisk


class AtOnce(Executor):
    """Runs each call inside `submit`, so chunks are written one after the other."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _run(future, call, args, named)
        return future


class _Awaited(Future[Any]):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def result(self, timeout: float | None = None) -> Any:
        self._turns.wait_until(self.done)
        return super().result(0)


class Turns(Executor):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._main = threading.Semaphore(0)
        self._live: list[threading.Semaphore] = []
        self._here = threading.local()
        self._may_main: Callable[[], bool] = lambda: True

    def __call__(self) -> Turns:
        """Return this executor. A store calls this object to get an executor."""
        return self

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future, gate = _Awaited(self), threading.Semaphore(0)

        def live() -> None:
            gate.acquire()
            self._here.gate = gate
            _run(future, call, args, named)
            self._live.remove(gate)
            self._chosen().release()

        self._live.append(gate)
        threading.Thread(target=live).start()
        self.switch()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.wait_until(lambda: not self._live)

    def switch(self) -> None:
        """Let a random thread continue, perhaps the caller. Return when the caller has the turn
        again.
        """
        here, chosen = getattr(self._here, "gate", self._main), self._chosen()
        if chosen is not here:
            chosen.release()
            here.acquire()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Let the other threads run until `holds()` is true. Only the main thread may call this."""
        self._may_main = holds
        while not holds():
            self.switch()
        self._may_main = lambda: True

    def _chosen(self) -> threading.Semaphore:
        return self._rng.choice(self._live + [self._main] * self._may_main())


class TurnsDisk(MemoryDisk):
    """An in-memory disk on which chunks are written in parallel, in an order that `turns`
    decides.
    """

    turns: Turns

    @classmethod
    def of(cls, disk: MemoryDisk, rng: random.Random) -> TurnsDisk:
        """Return a copy of `disk`. `rng` decides which of the threads that use it runs next."""
        made = cls.with_files_of(disk)
        made.turns = Turns(rng)
        return made

    def write(self, path: Any, data: memoryview) -> None:
        self.turns.switch()
        super().write(path, data)

    def sync(self, path: Any) -> None:
        self.turns.switch()
        super().sync(path)


def _run(future: Future[Any], call: Callable[..., Any], args: Any, named: Any) -> None:
    try:
        future.set_result(call(*args, **named))
    except BaseException as exc:
        future.set_exception(exc)
