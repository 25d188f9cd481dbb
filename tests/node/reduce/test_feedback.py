"""Error feedback: rounding removes a part of a node's pseudo-gradient, the residual. If the rounded
pseudo-gradient was committed, the residual is added to the node's next one. The ledger says whether
it was committed; how the reduce ended on this node does not matter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Skip, Value
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.reduce import reduce_task as exchanging
from p2ptrain.node.reduce.reduce_task import run_reduces, settle
from p2ptrain.node.state.timing import ReduceTiming
from p2ptrain.ring import Reduce, ReduceStatistics
from p2ptrain.run.manifest import CodecSpec
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Rig, opening, rig, settled

BLOCKS, TOKENS = 2, 32
"""The numbers of data blocks and of tokens that a participant contributes to an outer step."""


def opening_with(r: Rig, *participants: Participant) -> Roster:
    state = r.context.ledger.snapshot
    return opening(state, *participants, learners=state.learners)


async def begin(r: Rig, step: int) -> NDArray[np.float32]:
    """Give the node work for outer step `step`, and open the reduce. Return the work's
    pseudo-gradient."""
    context = r.context
    assert context.trainer.arena is not None
    await settled(lambda: context.outer.step == step)
    work = np.random.default_rng(step).standard_normal(context.layout.numel, np.float32)
    context.trainer.arena.local[:] = context.trainer.arena.theta - work * np.float32(0.01)
    offered = np.empty(context.outer_step(step).fragment.numel, np.float32)
    context.outer_step(step).fragment.gather(
        context.trainer.arena.theta - context.trainer.arena.local, offered
    )
    lease = context.ledger.snapshot.leases[context.me]
    context.trainer.work = LocalWork(step, lease[:BLOCKS], TOKENS)
    r.decide(opening_with(r, Participant(context.me, TOKENS, BLOCKS)))
    context.changes.notify_all()
    return offered


async def offer(r: Rig, step: int) -> tuple[NDArray[np.float32], Digest]:
    """Average a pseudo-gradient in outer step `step`. Return the pseudo-gradient and the update's
    digest."""
    context, offered = r.context, await begin(r, step)
    await settled(lambda: context.reduce.report is not None and context.reduce.report.step == step)
    assert context.reduce.report is not None
    update = context.reduce.report.update
    assert update is not None
    return offered, update


def owed(r: Rig) -> list[NDArray[np.float32]]:
    """Return copies of the node's residuals, one for each fragment."""
    return [residual.owed.copy() for residual in r.context.outer.residuals]


async def test_residual_is_the_rounding_error_of_all_committed_updates(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rules": policy(participants_min=1, snapshot_every=100),
        "codec": CodecSpec("int4", 32, feedback=True),
        "sync": SyncSpec(fragments=2, overlap_steps=1),
        "inner_steps": 2 * BLOCKS,
        "steps": 99,
    }
    async with rig(tmp_path, **settings) as r, trio.open_nursery() as nursery:
        nursery.start_soon(keep_outer_state, r.context)
        nursery.start_soon(run_reduces, r.context)
        lacking = [np.zeros(each.numel) for each in r.context.fragments]
        """For each fragment, the sum of all committed pseudo-gradients minus the sum of their
        updates."""
        for step in range(6):
            before, number = owed(r), step % 2
            offered, update = await offer(r, step)
            if step == 2:  # This step is skipped, so what its rounding removed does not count.
                r.decide(Skip(step))
                r.context.changes.notify_all()
                await settled(lambda done=step + 1: r.context.outer.step == done)  # type: ignore[misc]
                assert [each.tobytes() for each in owed(r)] == [each.tobytes() for each in before]
                continue
            told = np.empty(len(offered), np.float32)
            r.context.outer_step(step).codec.dequantise(r.context.store.read_blob(update), told)
            lacking[number] += offered.astype(np.float64) - told
            r.decide(Commit(step, 0, update))
            r.context.changes.notify_all()
            await settled(lambda done=step + 1: r.context.outer.step == done)  # type: ignore[misc]
            assert np.abs(owed(r)[number]).max() > 1e-4
            np.testing.assert_allclose(owed(r)[number], lacking[number], atol=1e-6)
            assert owed(r)[1 - number].tobytes() == before[1 - number].tobytes()
        nursery.cancel_scope.cancel()


class Late(Reduce):
    """A reduce that the other participants finish, including our contribution in the mean, but that
    this node does not finish in time. `lost`: what rounding removed from our contribution."""

    lost: NDArray[np.float32] | None = None

    def __init__(self, *terms: Any, residual_out: NDArray[np.float32] | None, **more: Any) -> None:
        super().__init__(*terms, residual_out=residual_out, **more)
        assert residual_out is not None
        self.aside = residual_out

    def run(self) -> ReduceStatistics:
        super().run()
        Late.lost = self.aside.copy()
        self._verdict.wait(30.0)
        raise ReduceAborted(self._request.step, self._request.attempt, (), "it was given up")


class Spoilt(Late):
    """A reduce in which a peer sent numbers that rounding cannot produce."""

    def run(self) -> ReduceStatistics:
        try:
            return super().run()
        finally:
            self.aside[-1] = 1e30


@asynccontextmanager
async def owing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, late: type[Late]
) -> AsyncIterator[Rig]:
    """Open the only node of a run. It has a residual from outer step 0, and its reduce of step 1 is
    a `late` one."""
    Late.lost = None
    rules = policy(participants_min=1, snapshot_every=100)
    codec = CodecSpec("int4", 32, feedback=True)
    async with (
        rig(folder, rules=rules, codec=codec, steps=99) as r,
        trio.open_nursery() as nursery,
    ):
        r.wait_for(reduce=ReduceTiming(lag_s=0.02))
        nursery.start_soon(keep_outer_state, r.context)
        nursery.start_soon(run_reduces, r.context)
        _, update = await offer(r, 0)
        r.decide(Commit(0, 0, update))
        r.context.changes.notify_all()
        await settled(lambda: bool(owed(r)[0].any()))
        r.decide(opening(r.context.ledger.snapshot, learners=[ANN.peer]))
        monkeypatch.setattr(exchanging, "Reduce", late)
        await begin(r, 1)
        await settled(lambda: Late.lost is not None)
        yield r
        nursery.cancel_scope.cancel()


async def decided(r: Rig, *values: Value) -> None:
    """Append the entries that the other participants agreed on, and wait until this node gives up
    its reduce."""
    r.decide(*values)
    r.context.changes.notify_all()
    await settled(lambda: bool(r.said("exchange-failed")))
    await trio.testing.wait_all_tasks_blocked()


async def update_of_others(r: Rig) -> Digest:
    """Return the digest of an update that is in the store. Its contents do not matter for the
    residual."""
    update = r.context.outer_step(1).update
    payload = bytearray(update.payload_bytes)
    return await trio.to_thread.run_sync(update.write, r.context.store, payload)


async def test_late_reduce_that_was_committed_replaces_the_residual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owing(tmp_path, monkeypatch, Late) as r:
        before = owed(r)[0]
        await decided(r, Commit(1, 0, await update_of_others(r)))
        assert Late.lost is not None
        assert owed(r)[0].tobytes() == Late.lost.tobytes() != before.tobytes()


async def test_late_reduce_that_was_skipped_leaves_the_residual_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owing(tmp_path, monkeypatch, Late) as r:
        before = owed(r)[0]
        await decided(r, Skip(1))
        assert owed(r)[0].tobytes() == before.tobytes()


async def test_commit_of_an_attempt_without_us_leaves_the_residual_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owing(tmp_path, monkeypatch, Late) as r:
        before, update = owed(r)[0], await update_of_others(r)
        ann = Participant(ANN.peer, TOKENS, BLOCKS)
        await decided(r, opening_with(r, ann), Commit(1, 1, update))
        assert owed(r)[0].tobytes() == before.tobytes()


async def test_residuals_of_a_pruned_step_are_dropped(tmp_path: Path) -> None:
    async with rig(tmp_path, codec=CodecSpec("int4", 32, feedback=True)) as r:
        ledger, residual = r.context.ledger.core, r.context.outer.residuals[0]
        assert residual is not None
        residual.owed[:] = 1.0
        residual.begun(0, 0, 1)
        settle(r.context)
        assert residual.open_step == 0
        ledger.state = ledger.kept.start = replace(ledger.state, step=1)
        settle(r.context)
        assert residual.open_step is None
        assert not residual.owed.any()


async def test_residual_larger_than_rounding_can_cause_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a residual comes from false numbers that a lying peer sent. If it were kept, other peers
    would refuse our contribution in every later step."""
    async with owing(tmp_path, monkeypatch, Spoilt) as r:
        await decided(r, Commit(1, 0, await update_of_others(r)))
        assert not owed(r)[0].any()
