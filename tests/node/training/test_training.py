"""A node gives orders to its trainer, checks the trainer's reports, and restarts a trainer that
ends."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.archive.home import Home
from p2ptrain.encoding import pack
from p2ptrain.errors import TrainerError, TrainerExited, TrainerUnfit
from p2ptrain.identity import load_or_create
from p2ptrain.ipc import frames
from p2ptrain.ipc.channel import Channel
from p2ptrain.ledger.chain.values import Commit, Participant, Skip
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.control.status import status
from p2ptrain.node.outer_state import state_mismatch
from p2ptrain.node.outer_state.state_mismatch import StateMismatch
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import trainer_link as module
from p2ptrain.node.training.trainer_task import train
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import Amendment, DataIndex, SignedAmendment
from p2ptrain.store import digest_of
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.fake_trainer import FakeTrainer, FakeTrainers, TrainerRemote, block_of
from p2ptrain.testing.published import policy
from p2ptrain.trainer.host import supervisor
from p2ptrain.trainer.host.launch import LaunchedRanks, StderrTail
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, StallWatch
from p2ptrain.trainer.host.supervisor import LocalTrainer
from tests.node.rig import ANN, QUICK, NewRig, Rig, opening, rig, settled

ALONE = policy(participants_min=1)


def know_data(r: Rig) -> None:
    """Give the node the index of the run's data."""
    manifest = r.context.manifest
    r.context.blobs.data = DataIndex.from_bytes(
        r.context.store.read_blob(manifest.data.index),
        train_blocks=manifest.data.train_blocks,
        validation_blocks=manifest.data.validation_blocks,
    )


@asynccontextmanager
async def training(
    folder: Path,
    remote: TrainerRemote,
    make: Callable[[Context, TrainerRemote], FakeTrainer] = FakeTrainer,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Open a founder with the θ of the current outer step, and start its trainer."""
    async with rig(folder, rules=ALONE, steps=9, **settings) as r, trio.open_nursery() as nursery:
        know_data(r)
        r.context.outer.step = 0
        trainers = FakeTrainers(r.context, remote, make)
        nursery.start_soon(partial(train, r.context, trainers, stop_s=0.05))
        yield r
        nursery.cancel_scope.cancel()


def orders(remote: TrainerRemote) -> list[str]:
    """Return in words the orders that the trainer has obeyed, such as "train 0 (2 blocks from 0)":
    two inner steps for outer step 0, the first of which is the run's inner step 0."""
    told = []
    for frame in remote.obeyed:
        match frame:
            case frames.Train(step, paths, first, ahead):
                how = "ahead" if ahead else "train"
                told.append(f"{how} {step} ({len(paths)} blocks from {first})")
            case frames.Load(step) | frames.Merge(step) | frames.Rebase(step):
                told.append(f"{frame.kind} {step}")
    return told


def close_step(r: Rig, *, skip: bool = False, with_us: bool = True) -> None:
    """Make the ledger commit or skip the current outer step, and set θ to the next one. `with_us`:
    the average includes this node's work."""
    state, work = r.context.ledger.snapshot, r.context.trainer.work
    blocks = len(state.leases[r.context.me] if work is None else work.blocks)
    ours = Participant(r.context.me, 16 * blocks, blocks)
    theirs = Participant(ANN.peer, 16, 1)
    if not state.is_member(ANN.peer):
        r.decide(replace(opening(state), learners=(ANN.peer,)))
        state = r.context.ledger.snapshot
    who = [ours, theirs] if with_us else [theirs]
    r.decide(opening(state, *who, learners=[ANN.peer]))
    end = Skip(state.step) if skip else Commit(state.step, 0, digest_of(b"%d" % state.step))
    r.decide(end)
    r.context.outer.step = state.step + 1
    r.context.changes.notify_all()


async def test_work_of_an_outer_step_is_offered_and_merged_into_the_next(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert orders(remote) == ["load 0", "train 0 (2 blocks from 0)"]
        assert r.context.trainer.work == LocalWork(0, (0, 1), 32)
        await settled(lambda: r.context.ledger.queue.waiting > 0)
        assert r.heard() == [Ready(r.context.me, 0, 32, 2)]
        await settled(lambda: not r.context.trainer.theta_in_use)
        close_step(r)
        await settled(
            lambda: r.context.trainer.work is not None and r.context.trainer.work.step == 1
        )
        assert orders(remote)[2:] == ["merge 1", "train 1 (2 blocks from 2)"]


async def test_computing_time_is_derived_from_reported_tokens_per_second(
    tmp_path: Path,
) -> None:
    """The trainer reports 1,000 tokens per second, and a block has 16 tokens. So an inner step
    counts as 0.016 s, although 0.05 s pass between two reports."""
    remote = TrainerRemote(inner_step_s=0.05)
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert [each["seconds"] for each in r.said("inner-step")] == [0.016, 0.016]
        assert r.context.trainer.inner_s == pytest.approx(0.032)


async def test_waiting_for_data_is_not_counted_as_computing_time(tmp_path: Path) -> None:
    async with training(tmp_path, TrainerRemote(data_wait_s=0.004)) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert [each["seconds"] for each in r.said("inner-step")] == [0.016, 0.016]
        assert r.context.trainer.inner_s == pytest.approx(0.024)


async def test_journal_and_status_contain_all_figures_of_an_inner_step(
    tmp_path: Path,
) -> None:
    async with training(tmp_path, TrainerRemote(data_wait_s=0.004, mfu=0.41)) as r:
        before = await status(r.context)
        assert (before.loss, before.data_wait_s, before.gradient_norm) == (None, None, None)
        await settled(lambda: r.context.trainer.work is not None)
        told = {
            "loss": 2.0,
            "tokens_per_s": 1000.0,
            "data_wait_s": 0.004,
            "mfu": 0.41,
            "learning_rate": 0.001,
            "gradient_norm": 1.5,
        }
        last = r.said("inner-step")[-1]
        taken = {"step": 0, "inner_step": 1, "seconds": 0.016, **told}
        assert {
            name: last[name] for name in last.keys() - {"event", "time", "monotonic_s"}
        } == taken
        shown = (await status(r.context)).to_json()
        assert {name: shown[name] for name in told} == told


async def test_work_that_was_not_averaged_is_rebased_and_offered_again(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        close_step(r, with_us=False)
        await settled(lambda: r.context.trainer.work == LocalWork(1, (0, 1), 32))
        assert orders(remote)[2:] == ["rebase 1"]
        assert len(remote.trained) == 2


async def test_work_on_a_wrong_theta_is_dropped_and_trained_again(
    tmp_path: Path,
) -> None:
    """The node finds that its θ differs from the certified one, and ends the trainer. The next
    trainer begins to train when θ is right again."""
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        found = StateMismatch(0, digest_of(b"own"), digest_of(b"certified"))
        state_mismatch.quarantine_state(r.context, found)
        assert r.context.trainer.work is None
        await settled(lambda: len(r.said("trainer-started")) == 2)
        assert [each["code"] for each in r.said("trainer-ended")] == ["STATE-DIFFERS"]
        await settled(lambda: r.context.trainer.up)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(orders(remote)) == 2
        r.context.outer.step = 0
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work == LocalWork(0, (0, 1), 32))
        assert orders(remote)[2:] == ["load 0", "train 0 (2 blocks from 0)"]


async def test_work_is_offered_after_a_skip_once_all_blocks_are_trained(tmp_path: Path) -> None:
    """After a skipped outer step, the lease has the old blocks and those of the next step."""
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        r.heard()
        close_step(r, skip=True)
        lease = r.context.ledger.snapshot.leases[r.context.me]
        assert len(lease) == 4
        await settled(lambda: r.context.trainer.work == LocalWork(1, lease, 64))
        # Training continues at inner step 2: the blocks of the skipped outer step count once.
        assert orders(remote)[2:] == ["rebase 1", "train 1 (2 blocks from 2)"]
        await settled(lambda: r.context.ledger.queue.waiting > 0)
        assert r.heard() == [Ready(r.context.me, 1, 64, 4)]
        assert len(remote.trained) == len(set(remote.trained)) == 4


@pytest.mark.parametrize("overlap", [1, 2])
async def test_restarted_trainer_uses_the_same_learning_rate_for_each_block(
    tmp_path: Path, overlap: int
) -> None:
    """An amendment changes the learning rate from outer step 2 on. Blocks of that step that are
    trained ahead, before it begins, are trained with the new rate too."""
    remote, amended_step = TrainerRemote(), 2
    async with training(tmp_path, remote, sync=SyncSpec(overlap_steps=overlap)) as r:
        context = r.context
        change = Amendment(r.run.id, 1, amended_step, lr=0.03)
        one = SignedAmendment.publish(load_or_create(context.home.identity), change, r.run)
        context.amendments.adopt_new(pack([one.to_bytes()]))
        r.decide(replace(opening(context.ledger.snapshot, learners=(ANN.peer,)), terms=one.terms))
        for step in range(amended_step + 1):
            await settled(lambda at=step: told_ahead(remote, at))  # type: ignore[misc]
            await settled(lambda: not context.trainer.theta_in_use)
            if step < amended_step:
                close_step(r)
        due = [
            str(context.data_block(each)) for each in context.ledger.snapshot.leases[context.me][:2]
        ]
        steady = rates_told(remote)
        assert [steady[each] for each in due] == [0.03, 0.03]
        assert set(steady.values()) == {0.1, 0.03}
        remote.obeyed.clear()
        # Simulate a trainer that dies before it is ready.
        context.trainer.work, remote.dies = None, True
        await settled(lambda: told_ahead(remote, amended_step))
        restarted = rates_told(remote)
        assert {each: restarted[each] for each in due} == {each: steady[each] for each in due}


def told_ahead(remote: TrainerRemote, step: int) -> bool:
    """Return whether the trainer was told, during outer step `step`, to train blocks of the next
    outer step."""
    trains = [each for each in remote.obeyed if isinstance(each, frames.Train)]
    return any(each.ahead and each.step == step for each in trains)


def rates_told(remote: TrainerRemote) -> dict[str, float]:
    """Return the learning rate with which each block was trained, by the block's digest."""
    rate, found = 0.1, dict[str, float]()
    for frame in remote.obeyed:
        match frame:
            case frames.Rates(lr):
                rate = lr
            case frames.Train(_, paths):
                found |= {str(block_of(path)): rate for path in paths}
    return found


async def test_no_order_is_given_while_theta_changes_or_is_behind_the_ledger(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    remote = TrainerRemote()
    r = await new_rig(tmp_path, rules=ALONE)
    know_data(r)
    nursery.start_soon(train, r.context, FakeTrainers(r.context, remote))
    await settled(lambda: r.context.trainer.up)
    r.context.changes.notify_all()
    await trio.testing.wait_all_tasks_blocked()
    assert remote.obeyed == []
    async with r.context.outer.lock:
        r.context.outer.step = 0
        r.context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        assert remote.obeyed == []
    r.context.changes.notify_all()
    await settled(lambda: bool(orders(remote)))


async def test_theta_is_in_use_from_an_order_until_the_trainers_report(
    tmp_path: Path,
) -> None:
    remote = TrainerRemote(stuck=True)
    async with training(tmp_path, remote) as r:
        remote.stuck = False
        await settled(lambda: r.context.trainer.work is not None)
        await settled(lambda: not r.context.trainer.theta_in_use)
        remote.stuck = True
        await settled(lambda: remote.rests)
        close_step(r)
        await settled(lambda: r.context.trainer.theta_in_use)
        remote.stuck = False
        await settled(lambda: not r.context.trainer.theta_in_use)
        assert orders(remote)[-2:] == ["merge 1", "train 1 (2 blocks from 2)"]


async def test_theta_is_not_in_use_while_data_for_an_order_is_fetched(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """It may take a long time until a peer has the data. If θ counted as in use in the meantime,
    the node could not update θ."""
    remote = TrainerRemote()
    r = await new_rig(tmp_path, rules=ALONE, steps=9)
    know_data(r)
    first = taken_away(r, r.context.ledger.snapshot.leases[r.context.me])
    r.context.outer.step = 0
    nursery.start_soon(train, r.context, FakeTrainers(r.context, remote))
    await settled(lambda: len(r.said("fetch-delayed")) == 1)
    close_step(r, skip=True)
    lease = r.context.ledger.snapshot.leases[r.context.me]
    more = taken_away(r, lease[len(first) :])
    for data in first:
        r.context.store.put_chunk(data)
    await settled(lambda: len(r.said("fetch-delayed")) == 2)
    assert not r.context.trainer.theta_in_use
    assert orders(remote) == []
    for data in more:
        r.context.store.put_chunk(data)
    await settled(lambda: r.context.trainer.work == LocalWork(1, lease, 64))
    assert orders(remote) == ["load 1", "train 1 (4 blocks from 2)"]


def taken_away(r: Rig, blocks: Sequence[int]) -> list[bytes]:
    """Return these data blocks, after removing them from the store."""
    paths = [r.context.store.chunk_path(r.context.data_block(each)) for each in blocks]
    held = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    return held


async def test_node_discards_its_work_when_it_is_no_longer_a_member(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        state = r.context.ledger.snapshot
        book = replace(state.lease_book, held={})
        r.set_chain(voters=(ANN.peer,), since={}, lease_book=book)
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work is None)
        assert r.context.state.current.name == "standing by"


async def test_member_that_is_dropped_and_readmitted_in_one_step_trains_again(
    tmp_path: Path,
) -> None:
    """A member discards its work when it is dropped. When it is readmitted in the same outer step,
    it gets the same lease again. In an earlier version its trainer was not told to repeat the work,
    so a run that needed this member stopped."""
    remote = TrainerRemote()
    me = load_or_create(Home(tmp_path / "home").identity).peer
    async with training(tmp_path, remote, founders=(me, ANN.peer)) as r:
        await settled(lambda: r.context.trainer.work is not None)
        without = replace(opening(r.context.ledger.snapshot), voters=(ANN.peer,))
        r.decide(without)
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work is None)
        r.decide(replace(without, learners=(me,)))
        assert r.context.ledger.snapshot.leases[me] == (0, 1)
        r.context.changes.notify_all()
        await settled(lambda: r.context.trainer.work == LocalWork(0, (0, 1), 32), 10.0)
        assert orders(remote)[2:] == ["load 0", "train 0 (2 blocks from 0)"]


async def test_node_ends_when_its_trainer_has_failed_too_often(
    tmp_path: Path,
) -> None:
    remote = TrainerRemote(starts_max=3)
    async with rig(tmp_path, rules=ALONE) as r:
        know_data(r)
        r.context.outer.step = 0

        async def keep_failing() -> None:
            while True:
                remote.fault = frames.Failed("NAN", "the loss is not finite")
                await r.context.changes.wait(at_most_s=0.01)

        with pytest.raises(BaseExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_failing)
                nursery.start_soon(train, r.context, FakeTrainers(r.context, remote))
        assert caught.group_contains(TrainerError, match="TRAINER-RESTARTS")
        (error,) = caught.value.exceptions
        assert isinstance(error, TrainerError)
        assert error.evidence == ("the trainer cannot continue: the loss is not finite",)
        assert [each["code"] for each in r.said("trainer-ended")] == ["NAN"] * 3
        what = "the trainer cannot continue: the loss is not finite"
        told = f"{what}; the node has started a new trainer (restart 2)"
        assert list(r.context.alerts.warnings.values()) == [Caution("NAN", told)]
        assert not r.context.trainer.up
        assert not r.context.trainer.theta_in_use


async def test_trainer_that_cannot_run_here_is_not_tried_again(tmp_path: Path) -> None:
    class Unfit(FakeTrainer):
        def check(self) -> None:
            raise TrainerUnfit(78, "[GPU-OLD] A GPU has no bf16 hardware\n--precision fp32")

    async with rig(tmp_path, rules=ALONE) as r:
        with pytest.raises(TrainerUnfit) as caught:
            await train(r.context, FakeTrainers(r.context, TrainerRemote(), Unfit))
        assert caught.value.evidence[-1] == "--precision fp32"
        assert [each["code"] for each in r.said("trainer-ended")] == ["TRAINER-UNFIT"]


class Noting(FakeTrainer):
    """A trainer that records in `useful`, when it is stopped, whether it has offered work."""

    def __init__(self, context: Context, remote: TrainerRemote, useful: list[bool]) -> None:
        super().__init__(context, remote)
        self._useful = useful

    def stop(self, deadline_s: float, *, again: bool = False) -> int:
        self._useful.append(self.useful)
        return super().stop(deadline_s, again=again)


async def test_restart_is_shown_until_the_next_trainer_offers_work(
    tmp_path: Path,
) -> None:
    """The trainer dies after its first block. The warning stays while the next trainer trains,
    since that one may fail at the same block."""
    told, useful = list[bool](), list[bool]()

    class Telling(Noting):
        """A trainer that records in `told`, at each report of an inner step, whether the node warns
        of the restart."""

        def __init__(self, context: Context, remote: TrainerRemote) -> None:
            super().__init__(context, remote, useful)
            self._context = context

        def feed(self, data: bytes) -> list[frames.Frame]:
            arrived = super().feed(data)
            reports = [each for each in arrived if isinstance(each, frames.Progress)]
            told.extend(module.RESTARTED in self._context.alerts.warnings for _ in reports)
            return arrived

    async with training(tmp_path, TrainerRemote(dies_in_mid_lease=True), Telling) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert len(r.said("trainer-ended")) == 1
        assert told == [False, True, True]
        assert r.context.alerts.warnings == {}
    assert useful == [False, True]


async def test_order_with_many_blocks_waits_until_a_busy_trainer_reads_it(
    tmp_path: Path,
) -> None:
    """For example, the trainer restores its optimizer and does not read, so its socket is full. The
    node can stop in the meantime."""
    asked = 0

    class Narrow(FakeTrainer):
        """A trainer whose socket is soon full. `asked` counts how many times a waiting order has
        asked whether to continue."""

        def __init__(self, context: Context, remote: TrainerRemote) -> None:
            super().__init__(context, remote)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            self._channel = Channel(self.socket, ask_every_s=0.001)

        def send(
            self, frame: frames.ToTrainer, meanwhile: Callable[[], None] | None = None
        ) -> None:
            def count_and_ask() -> None:
                nonlocal asked
                asked += 1
                assert meanwhile is not None
                meanwhile()

            super().send(frame, count_and_ask)

    remote = TrainerRemote(stuck=True)
    async with training(tmp_path, remote, Narrow, inner_steps=90) as r:
        await settled(lambda: asked >= 5)
        assert r.said("trainer-ended") == []
        remote.stuck = False
        await settled(lambda: r.context.trainer.work is not None)
        assert orders(remote) == ["load 0", "train 0 (90 blocks from 0)"]
        remote.stuck, asked = True, 0
        await settled(lambda: remote.rests)
        close_step(r)
        await settled(lambda: asked >= 5)
    assert remote.starts == 1


class Process:
    """A rank that ends, with this exit status, only when `gone` is set: `kill` has no effect."""

    pid = 1

    def __init__(self, gone: threading.Event, code: int) -> None:
        self._gone, self._code = gone, code

    def wait(self) -> int:
        self._gone.wait(60.0)
        return self._code

    def kill(self) -> None:
        pass


async def test_node_stays_responsive_while_a_rank_ends_slowly(tmp_path: Path) -> None:
    """A rank may take seconds to release its GPU, and other peers consider a node down after eight
    seconds of silence."""
    dead, slow = threading.Event(), threading.Event()
    dead.set()
    ours, theirs = socket.socketpair()
    nothing, lifeline = os.pipe()
    ranks = (Process(slow, -9), Process(dead, 1))
    launched = LaunchedRanks(ranks, ours, lifeline, StderrTail(nothing))  # type: ignore[arg-type]
    running = LocalTrainer(launched, StallWatch(time.monotonic(), AnswerTimeout()), 1)
    await settled(lambda: running.poll() is not None)

    async def tick() -> None:
        looks = itertools.count()
        await settled(lambda: next(looks) >= 100)  # While the rank ends, everything else continues.
        slow.set()
        theirs.close()

    async with rig(tmp_path, rules=ALONE) as r, trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        began_s = time.monotonic()
        with pytest.raises(TrainerExited):
            await module.TrainerSession(r.context, running).serve()
        assert slow.is_set()
        assert time.monotonic() - began_s < supervisor.KILL_LIMIT_S
    running.kill()


@pytest.mark.parametrize("by", ["a regular check", "an order that cannot be sent"])
async def test_last_report_of_a_trainer_is_read_after_its_end(tmp_path: Path, by: str) -> None:
    """The report says why the trainer ended. `by`: the way in which the node notices the end."""
    noticed = threading.Event()

    class Late(FakeTrainer):
        """A trainer whose last report is read only after the node has noticed its end."""

        def feed(self, data: bytes) -> list[frames.Frame]:
            if b"finite" in data:
                assert noticed.wait(30.0)
            return super().feed(data)

        def check(self) -> None:
            try:
                super().check()
            except TrainerExited:
                noticed.set()
                raise

        def send(
            self, frame: frames.ToTrainer, meanwhile: Callable[[], None] | None = None
        ) -> None:
            super().send(frame, meanwhile)
            fails = by != "a regular check" and isinstance(frame, frames.Train)
            if fails and not noticed.is_set():
                self.await_end(30.0)
                noticed.set()
                raise TrainerExited(-9, "")

    remote = TrainerRemote(fault=frames.Failed("NAN", "the loss is not finite"))
    look_s = 0.01 if by == "a regular check" else 3600.0
    async with training(tmp_path, remote, Late, timing=replace(QUICK, trainer_look_s=look_s)) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert [each["code"] for each in r.said("trainer-ended")] == ["NAN"]


async def test_trainer_that_ends_with_its_node_is_not_an_error(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=ALONE) as r:
        with trio.CancelScope() as node:

            class Ending(FakeTrainer):
                def feed(self, data: bytes) -> list[frames.Frame]:
                    trio.from_thread.run_sync(node.cancel)
                    raise TrainerError("it has ended")

            await train(r.context, FakeTrainers(r.context, TrainerRemote(), Ending))
        assert node.cancelled_caught


@pytest.mark.parametrize(
    ("poison", "code"), [(float("nan"), "NAN"), (-float("inf"), "NAN"), (1e3, "DIVERGED")]
)
async def test_work_that_is_not_finite_or_exceeds_the_bound_is_trained_again(
    tmp_path: Path, poison: float, code: str
) -> None:
    remote, useful = TrainerRemote(poison=poison), list[bool]()
    async with training(tmp_path, remote, partial(Noting, useful=useful)) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert [ended["code"] for ended in r.said("trainer-ended")] == [code]
        assert remote.starts == 2
        assert useful == [False]
        await settled(lambda: r.context.ledger.queue.waiting > 0)
        assert r.heard() == [Ready(r.context.me, 0, 32, 2)]


async def test_block_that_a_trainer_finds_damaged_is_fetched_for_the_next_one(
    tmp_path: Path,
) -> None:
    remote = TrainerRemote(held=True)
    async with training(tmp_path, remote) as r:
        await settled(lambda: bool(orders(remote)))
        block = r.context.data_block(0)
        path = r.context.store.chunk_path(block)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(b"rotten" + data[6:])
        remote.fault = frames.Failed("DATA", "a block is damaged")
        remote.held = False
        await settled(lambda: not r.context.store.has_chunk(block))
        r.context.store.put_chunk(data)  # Store the block again, as a fetch from a peer would.
        await settled(lambda: remote.starts == 2 and r.context.trainer.work is not None)
        assert r.context.trainer.work == LocalWork(0, (0, 1), 32)


async def test_held_out_block_that_a_trainer_found_damaged_counts_as_missing(
    tmp_path: Path,
) -> None:
    """The store must notice the damage. Otherwise every measurement would lack this block until the
    node reads its whole store again (scrubs it)."""
    remote = TrainerRemote(stops_at=1)
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert r.context.blobs.data is not None
        sound, block = r.context.blobs.data.validation
        close_step(r)
        await settled(lambda: remote.rests and r.context.trainer.validation.own is not None)
        share = r.context.trainer.validation.own
        assert share is not None
        block = (sound, block)[share.first]
        path = r.context.store.chunk_path(block)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(b"rotten" + data[6:])
        remote.fault = frames.Failed("DATA", "a block is damaged", 1)
        remote.stops_at = None
        await settled(lambda: not r.context.store.has_chunk(block))
        assert [each["code"] for each in r.said("evaluation-failed")] == ["DATA"]


async def test_offered_work_of_an_ended_trainer_stays_until_its_step_is_over(
    tmp_path: Path,
) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        local = r.context.trainer.arena.local.copy() if r.context.trainer.arena else None
        assert local is not None
        told = len(orders(remote))
        remote.dies = True
        await settled(lambda: remote.starts == 2 and r.context.trainer.up)
        r.context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        assert len(orders(remote)) == told
        assert r.context.trainer.work == LocalWork(0, (0, 1), 32)
        close_step(r)
        await settled(lambda: orders(remote)[told:] == ["load 1", "train 1 (2 blocks from 2)"])


async def test_our_share_of_the_held_out_blocks_is_measured_once(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with training(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        close_step(r)
        await settled(lambda: r.context.trainer.validation.own is not None)
        assert r.context.trainer.validation.own is not None
        assert r.context.trainer.validation.own.step == 1
        # A restarted trainer does not measure the same θ again.
        remote.dies = True
        await settled(lambda: remote.starts == 2 and r.context.trainer.up)
        for _ in range(3):
            r.context.changes.notify_all()
            await trio.testing.wait_all_tasks_blocked()
        asked = [frame for frame in remote.obeyed if isinstance(frame, frames.Evaluate)]
        assert [(frame.request, len(frame.block_paths)) for frame in asked] == [(1, 1)]
        assert len(r.said("share-evaluated")) == 1
