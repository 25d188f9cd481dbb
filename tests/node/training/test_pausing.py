"""A paused node ends its trainer's processes, so their memory is free, and starts them again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from p2ptrain.availability.decision import Pause
from p2ptrain.availability.wishes import Limits, Wishes
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.control.pausing import set_pause
from p2ptrain.node.training.trainer_processes import subprocesses
from p2ptrain.node.training.trainer_task import train
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.fake_trainer import TrainerRemote
from tests.node.rig import rig, settled
from tests.node.training.test_training import ALONE, know_data, orders, training

WISH = Pause("owner", "you paused it, without an end")


@pytest.mark.needs_torch
async def test_processes_of_a_paused_trainer_are_gone(tmp_path: Path) -> None:
    """The trainer is a real process with torch. After the pause, a new one trains."""
    async with rig(tmp_path, rules=ALONE, steps=9) as r, trio.open_nursery() as nursery:
        know_data(r)
        r.context.outer.step = 0
        nursery.start_soon(partial(train, r.context, subprocesses(r.context)))
        await settled(lambda: r.context.trainer.work is not None, deadline_s=200.0)
        (first,) = r.said("trainer-started")
        pids = first["pids"]
        assert isinstance(pids, tuple)
        held_bytes = sum(psutil.Process(pid).memory_info().rss for pid in pids)
        assert held_bytes > 10**8

        set_pause(r.context, WISH)
        await settled(lambda: not any(map(psutil.pid_exists, pids)), deadline_s=100.0)
        await settled(lambda: not r.context.trainer.up)
        assert r.said("trainer-ended") == []

        set_pause(r.context, None)
        await settled(lambda: r.context.trainer.up, deadline_s=200.0)
        nursery.cancel_scope.cancel()


async def test_pause_in_mid_lease_reports_no_work_and_trains_again_after_it(
    tmp_path: Path,
) -> None:
    remote = TrainerRemote(held=True)
    async with training(tmp_path, remote) as r:
        await settled(lambda: remote.rests)
        r.heard()
        set_pause(r.context, WISH)
        remote.held = False
        await settled(lambda: not r.context.trainer.up)
        await settled(lambda: r.context.ledger.queue.waiting)
        assert r.heard() == [Ready(r.context.me, 0, 0, 0)]
        assert r.context.shown.name == "paused"
        assert not r.context.may_train
        set_pause(r.context, None)
        await settled(lambda: r.context.trainer.work is not None)
        assert r.context.trainer.work == LocalWork(0, (0, 1), 32)
        assert orders(remote) == [
            "load 0",
            "train 0 (2 blocks from 0)",
            "load 0",
            "train 0 (2 blocks from 0)",
        ]
        assert [record["kind"] for record in r.said("paused")] == ["owner"]
        assert [record["kind"] for record in r.said("resumed")] == ["owner"]


async def test_finished_work_stays_offered_during_a_pause(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        work = r.context.trainer.work
        r.heard()
        set_pause(r.context, WISH)
        await settled(lambda: not r.context.trainer.up)
        await settled(lambda: r.context.ledger.queue.waiting)
        assert r.heard() == [Ready(r.context.me, 0, 32, 2)]
        assert r.context.trainer.work == work


async def test_many_pauses_do_not_use_up_the_restarts(tmp_path: Path) -> None:
    remote = TrainerRemote(starts_max=20)
    async with training(tmp_path, remote) as r:
        for number in range(8):
            await settled(lambda: r.context.trainer.up)
            assert remote.starts == number + 1
            set_pause(r.context, WISH)
            await settled(lambda: not r.context.trainer.up)
            set_pause(r.context, None)
        assert r.context.alerts.warnings == {}


async def test_limits_hold_from_the_next_start_of_the_trainer(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.up)
        assert remote.limits == (1, 0)
        r.context.state.wishes = Wishes(limits=Limits(threads=3, gpu_bytes=10**9))
        set_pause(r.context, WISH)
        await settled(lambda: not r.context.trainer.up)
        set_pause(r.context, None)
        await settled(lambda: r.context.trainer.up)
        assert remote.limits == (3, 10**9)
