"""Members measure the loss of θ on held-out blocks together. The ledger determines which members
measure, and their heartbeats contain their reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant, Skip
from p2ptrain.names import peer_name
from p2ptrain.node.control.status import status
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.state.timing import Timing
from p2ptrain.node.training import evaluation_task
from p2ptrain.node.training.evaluation_task import (
    gather_validation,
    is_measured,
    measured,
    own_files,
    shares,
)
from p2ptrain.observe.status import status_lines
from p2ptrain.peers.heartbeat import LOSS_MAX_NATS, ValidationReport
from p2ptrain.peers.validation_tally import Validation, ValidationShare
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, Rig, heartbeat, opening, rig, settled
from tests.node.training.test_training import know_data

TWO = policy(participants_min=1)


@asynccontextmanager
async def gathering(folder: Path, **settings: object) -> AsyncIterator[Rig]:
    """Open a node that combines the members' reports into one mean loss."""
    async with rig(folder, **({"rules": TWO} | settings)) as r, trio.open_nursery() as nursery:  # type: ignore[arg-type]
        know_data(r)
        nursery.start_soon(gather_validation, r.context)
        yield r
        nursery.cancel_scope.cancel()


def commit(r: Rig, *peers: PeerId) -> int:
    """Make the ledger commit the current outer step with the work of these peers, which become
    members if they are not. Return the next outer step."""
    state = r.context.ledger.snapshot
    if learners := [peer for peer in peers if not state.is_member(peer)]:
        r.decide(replace(opening(state), learners=(*state.learners, *learners)))
    state = r.context.ledger.snapshot
    who = [Participant(peer, 16, 1) for peer in sorted(peers)]
    r.decide(opening(state, *who, learners=state.learners))
    step = r.decide(Commit(state.step, 0, digest_of(b"%d" % state.step))).step
    r.context.outer.step = step
    r.context.changes.notify_all()
    return step


def report_of(r: Rig, peer: PeerId, step: int, loss: float) -> ValidationReport:
    """Return the report of a peer that measured this mean loss on its share."""
    share = shares(r.context, step)[peer]
    tokens = (share.stop - share.first) * r.context.manifest.data.block_tokens
    return ValidationReport(step, share.first, share.stop, tokens, loss * tokens)


def says(
    r: Rig, peer: PeerId, report: ValidationReport, serial: int = 1, **changes: object
) -> None:
    """Let the node receive a heartbeat of `peer` with this report."""
    beat = heartbeat(r.run.id, validation=report, serial=serial, **changes)
    if r.context.peers.table.note_heartbeat(peer, beat, r.context.now()) is not None:
        r.context.peers.detector.note_arrival(peer, r.context.now())
        evaluation_task.note_share_report(r.context, peer, beat)
    r.context.changes.notify_all()


async def test_participants_of_the_newest_commit_share_the_measurement(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=TWO, steps=9) as r:
        me = r.context.me
        assert shares(r.context, 0) == {}  # Nothing has been agreed yet.
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        # Founders are often seeds, which cannot measure. So before the first commit, the learner
        # gets the whole measurement and the founder gets no share.
        assert shares(r.context, 0) == {ANN.peer: ValidationShare(0, 2)}
        commit(r, me, ANN.peer)
        assert sorted(shares(r.context, 1).values(), key=str) == [
            ValidationShare(0, 1),
            ValidationShare(1, 2),
        ]
        assert set(shares(r.context, 1)) == {me, ANN.peer}
        commit(r, ANN.peer)
        assert shares(r.context, 2) == {ANN.peer: ValidationShare(0, 2)}
        assert set(shares(r.context, 1)) == {me, ANN.peer}  # Shares of earlier steps do not change.
        r.decide(opening(r.context.ledger.snapshot, Participant(me, 16, 1), learners=[ANN.peer]))
        r.decide(Skip(2))
        # A skip leaves θ unchanged.
        assert shares(r.context, 3) == {ANN.peer: ValidationShare(0, 2)}


@pytest.mark.parametrize(("every", "steps"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (9, [0, 3])])
async def test_theta_is_measured_at_intervals_and_at_the_end(
    tmp_path: Path, every: int, steps: list[int]
) -> None:
    rules = policy(participants_min=1, evaluate_every=every)
    async with rig(tmp_path, rules=rules, steps=3) as r:
        due = [0] if is_measured(r.context) else []
        due += [
            step for _ in range(3) if (step := commit(r, r.context.me)) and is_measured(r.context)
        ]
        assert due == steps


async def test_loss_of_theta_is_the_mean_of_all_members_reports(tmp_path: Path) -> None:
    async with gathering(tmp_path) as r:
        me = r.context.me
        step = commit(r, me, ANN.peer)
        tokens = r.context.manifest.data.block_tokens
        measured(r.context, step, 3.0, tokens)
        assert describe(r.context, 1, 1).validation == report_of(r, me, step, 3.0)
        says(r, ANN.peer, report_of(r, ANN.peer, step, 5.0))
        await settled(lambda: bool(r.said("evaluated")))
        assert r.said("evaluated") == [
            {
                "event": "evaluated",
                "step": 1,
                "loss": 4.0,
                "tokens": 2 * tokens,
                "blocks": 2,
                "blocks_total": 2,
                "missing": (),
                "what": "4.000 over all 2 held-out blocks",
            }
        ]
        shown = await status(r.context)
        assert shown.validation_loss == 4.0
        assert "validate  θ of outer step 1: loss 4.000 over all 2 held-out blocks" in (
            status_lines(shown)
        )


async def test_loss_is_published_without_the_share_of_a_member_that_is_down(tmp_path: Path) -> None:
    async with gathering(tmp_path) as r:
        step = commit(r, r.context.me, ANN.peer)
        r.context.peers.detector.note_arrival(ANN.peer, r.context.now())
        measured(r.context, step, 3.0, r.context.manifest.data.block_tokens)
        await trio.testing.wait_all_tasks_blocked()
        assert r.said("evaluated") == []
        r.context.peers.detector.hint_lost(ANN.peer, r.context.now() - 2.0)
        r.context.changes.notify_all()
        await settled(lambda: bool(r.said("evaluated")))
        (told,) = r.said("evaluated")
        assert (told["what"], told["missing"]) == ("3.000 over 1 of 2 held-out blocks", (ANN.peer,))
        shown = await status(r.context)
        assert shown.validated == (
            "θ of outer step 1: loss 3.000 over 1 of 2 held-out blocks; "
            f"no report from {peer_name(ANN.peer)}"
        )
        assert shown.validation["covered"] == 1


async def test_report_that_arrives_before_its_commit_counts_afterwards(tmp_path: Path) -> None:
    async with gathering(tmp_path) as r:
        me = r.context.me
        commit(r, me, ANN.peer)
        for peer in (ANN.peer, BOB.peer):
            ahead = ValidationReport(2, 0, 2, 32, 96.0)
            says(r, peer, ahead)
        assert r.context.trainer.validation.newest is None
        step = commit(r, ANN.peer)
        await settled(lambda: r.context.trainer.validation.newest is not None)
        assert r.context.trainer.validation.newest == Validation(step, 3.0, 32, 2, 2, ())
        assert [each["peer"] for each in r.said("validation-refused")] == [BOB.peer]


async def test_reports_from_a_branch_or_from_nonmembers_do_not_count(tmp_path: Path) -> None:
    async with gathering(tmp_path) as r:
        step = commit(r, r.context.me, ANN.peer)
        await trio.testing.wait_all_tasks_blocked()
        report = report_of(r, ANN.peer, step, 5.0)
        says(r, ANN.peer, report, line=Digest("e" * 64))
        says(r, CAI.peer, report)
        assert r.context.trainer.validation.newest is None
        refused = [(each["peer"], each["reason"]) for each in r.said("validation-refused")]
        assert refused == [(CAI.peer, "it has no share of the held-out blocks of outer step 1")]
        says(r, ANN.peer, report, serial=2)
        assert r.context.trainer.validation.newest is not None


async def test_loss_that_is_implausibly_large_is_not_reported(tmp_path: Path) -> None:
    async with gathering(tmp_path) as r:
        step = commit(r, r.context.me)
        measured(r.context, step, 2 * LOSS_MAX_NATS, 16)
        assert (r.context.trainer.validation.own, r.context.trainer.validation.newest) == (
            None,
            None,
        )
        assert [each["code"] for each in r.said("evaluation-failed")] == ["NAN"]


async def test_missing_held_out_blocks_do_not_delay_training(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=TWO, timing=Timing()) as r:
        know_data(r)
        commit(r, r.context.me)
        whole = await own_files(r.context, lambda: True)
        assert len(whole) == 2
        Path(whole[1]).unlink()
        orders: list[str] = []
        got: list[tuple[str, ...]] = []

        async def fetch() -> None:
            got.append(await own_files(r.context, lambda: not orders))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert got == []
            orders.append("train")
            r.context.changes.notify_all()
        assert got == [()]
