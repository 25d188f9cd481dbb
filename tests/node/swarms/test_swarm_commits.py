"""Several nodes train a model: the tests check what they agree on, what is averaged, and which
peers get the credit for which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster, Schedule, Skip
from p2ptrain.node.reduce import ring_order
from p2ptrain.node.training.evaluation_task import shares
from p2ptrain.ring import SCHEDULES, Arrangement
from p2ptrain.run.manifest import CodecSpec
from p2ptrain.state import Float32Vector
from p2ptrain.testing.published import policy
from tests.node.swarm import CLAIMS, Swarm, SwarmNode, deaf, swarm

ENDLESS = 10_000


async def test_three_trainers_and_a_seed_finish_a_run_with_equal_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes use each schedule of a reduce in turn; all must lead to equal states."""

    def in_turn(
        peers: Sequence[PeerId],
        *_: object,
        current: tuple[Schedule, Sequence[PeerId]],
        is_coarse: bool,
    ) -> Arrangement:
        """Return the schedule that follows the last agreed one, so that all nodes propose the
        same."""
        turn = SCHEDULES.index(current[0]) + 1
        return Arrangement(
            SCHEDULES[turn % len(SCHEDULES)], tuple(peers[::-1]), 0.0, "it is its turn"
        )

    monkeypatch.setattr(ring_order, "arrangement", in_turn)
    async with swarm(tmp_path, steps=4, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(4))
        agreed = {each.entry.value for each in s.seed.context.ledger.core.chain}
        rosters = {each for each in agreed if isinstance(each, Roster) and each.participants}
        said = [done for node in s.up for done in node.events("exchange-started")]
        assert {each.schedule for each in rosters} == set(SCHEDULES)
        assert {(each.schedule, each.peers) for each in rosters} == {
            (each["schedule"], each["peers"]) for each in said
        }
        assert {node.context.ledger.snapshot.phase for node in s.up} == {Phase.ENDED}
        assert len({node.context.ledger.snapshot.head for node in s.up}) == 1
        assert len({node.context.outer.vectors.digest() for node in s.up}) == 1
        s.check_chain()
        await s.until(lambda: all(s[n].events("run-ended") for n in ("seed", "ann", "bob", "cai")))
        # Each node with a share of the held-out blocks has measured the final weights on it, and
        # all nodes know the complete result.
        await s.until(lambda: all(node.events("evaluated", step=4, blocks=2) for node in s.up))
        told = [node.events("evaluated", step=4, blocks=2)[0] for node in s.up]
        assert len({each["loss"] for each in told}) == 1
        measured = [node.peer for node in s.up if node.events("share-evaluated", step=4)]
        assert sorted(measured) == sorted(shares(s.seed.context, 4))
        checks = [each for node in s.up for each in node.events("average-checked")]
        assert {each["wrong"] for each in checks} == {""}


async def test_states_stay_equal_although_each_node_keeps_its_own_residuals(
    tmp_path: Path,
) -> None:
    codec = CodecSpec("int4", 64, feedback=True)
    async with swarm(tmp_path, steps=ENDLESS, codec=codec) as s:
        await s.until(lambda: all(owed(s[name]).any() for name in ("ann", "bob", "cai")))
        assert all(np.isfinite(owed(s[name])).all() for name in ("ann", "bob", "cai"))
        assert s.seed.context.outer.residuals == ()
        s.check_equal()


def owed(node: SwarmNode) -> Float32Vector:
    """Return the rounding errors that this node will add to its next contribution."""
    residual = node.context.outer.residuals[0]
    assert residual is not None
    return residual.owed


async def test_founder_that_trains_can_run_alone(tmp_path: Path) -> None:
    alone = policy(participants_min=1)
    async with swarm(tmp_path, nodes=("ann",), founders=("ann",), rules=alone, steps=3) as s:
        await s.until(lambda: s.at_step(3))
        assert s.credits("ann") == [0, 1, 2]
        s.check_chain("ann")
        s.check_equal()


async def test_straggler_is_left_out_and_contributes_its_work_later(
    tmp_path: Path,
) -> None:
    async with swarm(tmp_path, steps=ENDLESS, rules=policy(grace_s=0.4)) as s:
        cai = s["cai"]
        await s.until(lambda: len(s.credits("cai")) >= 2)
        cai.remote.stuck = True
        await s.until(lambda: cai.remote.rests)
        # Cai's trainer was told to read the θ of this step and has not done so yet, so θ must
        # not change. `stands_still` waits, since an earlier report of the trainer may still arrive.
        await stands_still(s, cai)
        await s.until(lambda: missed(s, "cai") >= 3)
        assert cai.context.ledger.snapshot.is_member(cai.peer)
        cai.remote.stuck = False
        done = len(s.credits("cai"))
        await s.until(lambda: len(s.credits("cai")) >= done + 2)
        s.check_chain()
        s.check_equal()
        # Training resumed from the work that Cai had when it was stopped.
        assert s.trained_once("cai")


async def stands_still(s: Swarm, node: SwarmNode) -> None:
    """Wait until the other nodes have finished three outer steps during which this node's θ was in
    use by its trainer and did not change."""
    since = node.step, s.seed.step

    def stood() -> bool:
        nonlocal since
        if node.step != since[0] or not node.context.trainer.theta_in_use:
            since = node.step, s.seed.step
        return s.seed.step >= since[1] + 3

    await s.until(stood)


def missed(s: Swarm, name: str) -> int:
    """Return the number of outer steps that were committed since this node last took part."""
    return s.seed.step - 1 - s.credits(name)[-1]


async def test_trainer_that_dies_in_the_middle_of_its_blocks_is_restarted(
    tmp_path: Path,
) -> None:
    async with swarm(tmp_path, steps=ENDLESS) as s:
        ann = s["ann"]
        await s.until(lambda: len(s.credits("ann")) >= 1)
        ann.remote.dies_in_mid_lease = True
        await s.until(lambda: ann.remote.starts == 2)
        done = len(s.credits("ann"))
        await s.until(lambda: len(s.credits("ann")) > done)
        s.check_chain()
        assert_stays_member(s, ann)
        assert [each["code"] for each in ann.events("trainer-ended")] == ["TRAINER-EXITED"]


def assert_stays_member(s: Swarm, node: SwarmNode) -> None:
    """Check that every roster since this node's first one contains this node."""
    rosters = [each.entry.value for each in s.seed.context.ledger.core.chain]
    members = [node.peer in each.members for each in rosters if isinstance(each, Roster)]
    assert members[members.index(True) :] == [True] * (len(members) - members.index(True))


async def test_work_that_was_offered_is_averaged_even_if_its_trainer_dies(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=ENDLESS, rules=policy(grace_s=30.0)) as s:
        ann, cai = s["ann"], s["cai"]
        await s.until(lambda: len(s.credits("cai")) >= 1)
        cai.remote.held = True
        # Cai still has a block to train, so it cannot become ready now.
        step = await s.until(lambda: cai.remote.rests and is_ready_and_waits_for(ann, cai))
        work = ann.context.trainer.work
        ann.remote.dies = True
        await s.until(lambda: ann.remote.starts == 2 and ann.context.trainer.up)
        assert ann.context.trainer.work == work
        cai.remote.held = False
        await s.until(lambda: s.credits("ann")[-1:] >= [step])
        assert step in s.credits("ann")
        await s.go_on()
        s.check_chain()
        assert s.trained_once("ann")


def is_ready_and_waits_for(node: SwarmNode, other: SwarmNode) -> int:
    """Return the outer step for which `node` is ready and `other` is not, or 0."""
    work, theirs = node.context.trainer.work, other.context.trainer.work
    step = node.context.ledger.snapshot.step
    waits = work is not None and work.step == step and (theirs is None or theirs.step < step)
    return step if waits and other.step == step else 0


async def test_restarted_node_does_not_contribute_before_it_has_trained_again(
    tmp_path: Path,
) -> None:
    """The members agree to average Ann's work while Ann is restarted and has an empty arena (the
    memory with the trained weights)."""
    async with swarm(tmp_path, steps=ENDLESS, rules=policy(grace_s=0.4)) as s:
        ann, cai = s["ann"], s["cai"]
        await s.until(lambda: len(s.credits("cai")) >= 2)
        cai.remote.held = True
        await s.until(lambda: is_ready_and_waits_for(ann, cai))
        await s.stop("ann")
        ann.remote.held = True
        cai.remote.held = False
        await s.start("ann")
        await s.go_on(2, "seed", "bob", "cai")
        ann.remote.held = False
        done = len(s.credits("ann"))
        await s.until(lambda: len(s.credits("ann")) > done)
        s.check_chain()
        s.check_equal()


async def test_work_of_a_skipped_step_is_contributed_in_the_next_step(
    tmp_path: Path,
) -> None:
    rules = policy(attempts_max=1, patience_s=0.0)
    nodes = ("ann", "bob")
    async with swarm(tmp_path, nodes=nodes, steps=ENDLESS, rules=rules, trust=CLAIMS) as s:
        await s.until(lambda: len(s.credits("ann")) >= 1)
        with deaf(s["ann"], s["bob"]):
            await s.until(lambda: skipped(s))
        last = skipped(s)[-1]
        await s.until(lambda: any(step > last for step, _, _ in s.committed(s.seed)))
        s.check_chain()
        s.check_equal()
        blocks = {step: blocks for step, _, blocks in s.committed(s.seed)}
        after = blocks[min(step for step in blocks if step > last)]
        assert len(after[s["ann"].peer]) > s.seed.context.manifest.inner.steps
        assert s.trained_once("ann")


def skipped(s: Swarm) -> list[int]:
    """Return the outer steps that the members agreed to skip."""
    values = [each.entry.value for each in s.seed.context.ledger.core.chain]
    return [value.step for value in values if isinstance(value, Skip)]
