"""A node offers finished work by reporting it to its own ledger. The report is repeated until the
ledger has received it, and work on a wrong θ is never reported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from p2ptrain.errors import TrainerError
from p2ptrain.ipc import frames
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.outer_state import state_mismatch
from p2ptrain.node.outer_state.state_mismatch import StateMismatch
from p2ptrain.node.state.context import Context
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.fake_trainer import FakeTrainer, TrainerRemote
from tests.node.rig import QUICK, settled
from tests.node.training.test_training import orders, training

FOUND = StateMismatch(0, digest_of(b"own"), digest_of(b"certified"))


class WatchedVector(np.ndarray[Any, np.dtype[np.float32]]):
    """A vector that calls `before_read` before a part of it is read."""

    before_read: Callable[[], None]

    def __getitem__(self, key: Any) -> Any:
        self.before_read()
        return self.view(np.ndarray)[key]


def watch_local(context: Context, before_read: Callable[[], None]) -> None:
    """Call `before_read` each time that the node reads trained weights. The trainer that runs now
    writes into the same memory as before."""
    assert context.trainer.arena is not None
    watched = context.trainer.arena.local.view(WatchedVector)
    watched.before_read = before_read
    context.trainer.arena.local = watched


async def test_work_is_reported_even_if_its_trainer_ends_before_the_report(
    tmp_path: Path,
) -> None:
    """The host of a rank disconnects while the node checks that rank's work. The report must not be
    lost: no trainer repeats this work, so if this node is the only voter, the run would stop."""
    measures, goes_on, noticed = threading.Event(), threading.Event(), threading.Event()

    def be_slow() -> None:
        measures.set()
        assert goes_on.wait(30.0)

    class Losing(FakeTrainer):
        def __init__(self, context: Context, remote: TrainerRemote) -> None:
            super().__init__(context, remote)
            watch_local(context, be_slow)

        def check(self) -> None:
            if measures.is_set() and not noticed.is_set():
                noticed.set()
                raise TrainerError("a rank has gone", code="TRAINER-RANKS")

    remote = TrainerRemote()
    quick = replace(QUICK, trainer_look_s=0.01)
    timing: Any = SimpleNamespace(
        **{each.name: getattr(quick, each.name) for each in fields(quick)}
    )
    async with training(tmp_path, remote, Losing, timing=timing) as r:
        await settled(noticed.is_set)
        timing.trainer_look_s = 60.0
        await trio.testing.wait_all_tasks_blocked(0.05)
        goes_on.set()
        await settled(lambda: len(r.said("trainer-started")) == 2)
        await settled(lambda: r.context.ledger.queue.waiting > 0)
        assert set(r.heard()) == {Ready(r.context.me, 0, 32, 2)}
        await settled(lambda: r.context.trainer.up)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert r.context.trainer.work == LocalWork(0, (0, 1), 32)
        assert orders(remote) == ["load 0", "train 0 (2 blocks from 0)"]
        assert len(r.said("ready")) == 1


@pytest.mark.parametrize("found", ["before it is ready", "while it is checked against the bound"])
async def test_work_trained_on_a_wrong_theta_is_not_offered(tmp_path: Path, found: str) -> None:
    """The node finds that its θ is wrong before or while it checks the trainer's work, and the
    trainer is still running. If the work were offered, it would be averaged once θ is right again.
    """
    was_found, ends = threading.Event(), threading.Event()

    def find(context: Context) -> None:
        if not was_found.is_set():
            was_found.set()
            trio.from_thread.run_sync(state_mismatch.quarantine_state, context, FOUND)

    class Suspected(FakeTrainer):
        def __init__(self, context: Context, remote: TrainerRemote) -> None:
            super().__init__(context, remote)
            self.node = context
            if found == "while it is checked against the bound":
                watch_local(context, partial(find, context))

        def feed(self, data: bytes) -> list[frames.Frame]:
            arrived = super().feed(data)
            ready = any(isinstance(frame, frames.FragmentReady) for frame in arrived)
            if ready and found == "before it is ready":
                find(self.node)
            return arrived

        def check(self) -> None:
            assert ends.wait(30.0)

    remote = TrainerRemote()
    async with training(tmp_path, remote, Suspected) as r:
        await settled(was_found.is_set)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert r.context.trainer.work is None
        ends.set()
        await settled(lambda: len(r.said("trainer-started")) == 2)
        assert r.heard() == []
        r.context.outer.step = 0
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work == LocalWork(0, (0, 1), 32))
        assert orders(remote) == 2 * ["load 0", "train 0 (2 blocks from 0)"]
