"""A node offers finished work by reporting it to its own ledger. The report is repeated until the
ledger has received it, and work on a wrong θ is never reported."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from p2ptrain.errors import TrainerError
from p2ptrain.ipc import frames
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.outer_state import state_mismatch
from p2ptrain.node.outer_state.state_mismatch import StateMismatch
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import ready_work
from p2ptrain.node.training import trainer_link as module
from p2ptrain.ring import contribution_peak
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.fake_trainer import FakeTrainer, TrainerRemote
from tests.node.rig import QUICK, settled
from tests.node.training.test_training import orders, training

FOUND = StateMismatch(0, digest_of(b"own"), digest_of(b"certified"))


async def test_work_is_reported_even_if_its_trainer_ends_before_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of a rank disconnects while the node checks that rank's work. The report must not be
    lost: no trainer repeats this work, so if this node is the only voter, the run would stop."""
    measures, goes_on, noticed = threading.Event(), threading.Event(), threading.Event()
    own_peak = contribution_peak

    def slow_peak(theta: NDArray[np.float32], local: NDArray[np.float32]) -> float:
        measures.set()
        assert goes_on.wait(30.0)
        return own_peak(theta, local)

    class Losing(FakeTrainer):
        def check(self) -> None:
            if measures.is_set() and not noticed.is_set():
                noticed.set()
                raise TrainerError("a rank has gone", code="TRAINER-RANKS")

    monkeypatch.setattr(ready_work, "contribution_peak", slow_peak)
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
async def test_work_trained_on_a_wrong_theta_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The node finds that its θ is wrong before or while it checks the trainer's work, and the
    trainer is still running. If the work were offered, it would be averaged once θ is right again.
    """
    heard, own_peak, note = (
        threading.Event(),
        contribution_peak,
        module.TrainerSession._note_ready,
    )
    at_once = found == "before it is ready"

    async def note_and_tell(
        conversation: module.TrainerSession, ready: frames.FragmentReady
    ) -> None:
        first = not heard.is_set()
        if first and at_once:
            state_mismatch.quarantine_state(conversation._context, FOUND)
        await note(conversation, ready)
        if first:
            works.append(conversation._context.trainer.work)
            heard.set()

    def find_and_measure(theta: NDArray[np.float32], local: NDArray[np.float32]) -> float:
        if not heard.is_set() and not at_once:
            trio.from_thread.run_sync(state_mismatch.quarantine_state, context[0], FOUND)
        return own_peak(theta, local)

    works, context = list[LocalWork | None](), list[Context]()
    monkeypatch.setattr(module.TrainerSession, "_note_ready", note_and_tell)
    monkeypatch.setattr(ready_work, "contribution_peak", find_and_measure)
    monkeypatch.setattr(FakeTrainer, "check", lambda trainer: heard.wait(30.0))
    remote = TrainerRemote(held=True)
    async with training(tmp_path, remote) as r:
        context.append(r.context)
        remote.held = False
        await settled(lambda: len(r.said("trainer-started")) == 2)
        assert works == [None]
        assert r.heard() == []
        r.context.outer.step = 0
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work == LocalWork(0, (0, 1), 32))
        assert orders(remote) == 2 * ["load 0", "train 0 (2 blocks from 0)"]
