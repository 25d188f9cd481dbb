"""A node that was left out of a reduce tells its user the reason."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.control import left_out_warning
from p2ptrain.node.control.left_out_warning import (
    JUST_STARTED,
    WARNING,
    LeftOutWatch,
    as_after_start,
    notice_left_out,
)
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, NewRig, Rig, opening, rig, settled

RULES = policy(participants_min=1)


def at(r: Rig, work: LocalWork | None = None, outer_step: int | None = 0) -> Caution | None:
    """Return the warning that a member gets in the ledger's current state, if it has never taken
    part in a reduce."""
    return LeftOutWatch(member=True).check(
        r.context.ledger.snapshot, r.context.me, work, outer_step
    )


@pytest.mark.parametrize(
    ("work", "outer_step", "why"),
    [
        (None, 0, left_out_warning.LATE),
        (LocalWork(0, (0,), 16), 0, left_out_warning.UNHEARD),
        (None, None, left_out_warning.BEHIND),
    ],
)
async def test_reason_for_being_left_out_depends_on_the_nodes_own_state(
    work: LocalWork | None, outer_step: int | None, why: Caution, tmp_path: Path
) -> None:
    async with rig(tmp_path, rules=RULES) as r:
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        assert at(r, work, outer_step) is None, "a membership roster does not open a reduce"
        r.decide(
            opening(r.context.ledger.snapshot, Participant(ANN.peer, 16, 1), learners=[ANN.peer])
        )
        assert at(r, work, outer_step) == why
        assert why.code == "SYNC-DROPPED"


async def test_participant_dropped_from_the_next_attempt_is_told_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=RULES) as r:
        state, me = r.context.ledger.snapshot, r.context.me
        ours, work = Participant(me, 16, 1), LocalWork(0, (0,), 16)
        r.decide(replace(opening(state), learners=(ANN.peer,)))
        r.decide(opening(r.context.ledger.snapshot, ours, learners=[ANN.peer]))
        rosters = LeftOutWatch(member=True)
        assert rosters.check(r.context.ledger.snapshot, me, work, 0) is None
        state = r.context.ledger.snapshot
        assert state.roster is not None
        theirs = (Participant(ANN.peer, 16, 1),)
        second = replace(state.roster, attempt=1, participants=theirs)
        again = replace(state, roster=second)
        assert rosters.check(again, me, work, 0) == left_out_warning.FAILED
        assert rosters.check(again, me, work, 0) is None, "one warning for each attempt"
        later = replace(again, roster=replace(second, attempt=2))
        assert (
            LeftOutWatch(member=True).check(later, me, work, 0, doubted=True)
            == left_out_warning.DOUBTED
        )


async def test_warning_after_a_failure_says_that_members_sit_out_in_turn(tmp_path: Path) -> None:
    """From the third attempt on, innocent members sit out too."""
    async with rig(tmp_path, rules=RULES) as r:
        theirs = Participant(ANN.peer, 16, 1)
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        for _ in range(3):
            r.decide(opening(r.context.ledger.snapshot, theirs, learners=[ANN.peer]))
        assert at(r, LocalWork(0, (0,), 16)) == left_out_warning.REPEATED
        assert at(r) == left_out_warning.LATE
        for why in (left_out_warning.FAILED, left_out_warning.REPEATED, left_out_warning.DOUBTED):
            assert "this node may not be the cause, since members sit out in turn" in why.do


async def test_removed_member_is_warned_but_a_stranger_is_not(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=RULES) as r:
        state, stranger = r.context.ledger.snapshot, PeerId(BOB.peer)
        assert LeftOutWatch(member=True).check(state, stranger, None, 0) == left_out_warning.GONE
        assert LeftOutWatch().check(state, stranger, None, 0) is None


def test_node_that_was_just_started_is_not_told_to_check_its_network() -> None:
    """A node that its own user had killed was once told that its network was the cause."""
    gone, late = left_out_warning.GONE, left_out_warning.LATE
    early = as_after_start(gone, 30.0)
    assert (early.code, early.what, early.do) == (gone.code, gone.what, JUST_STARTED)
    assert "network" not in early.words
    assert as_after_start(gone, 121.0) == gone
    assert as_after_start(late, 30.0) == late


def told(r: Rig, times: int) -> bool:
    return len(r.said("left-out")) == times


async def test_warning_stays_until_a_reduce_includes_this_node(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=RULES)
    context = r.context
    theirs, ours = Participant(ANN.peer, 16, 1), Participant(context.me, 16, 1)
    r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
    nursery.start_soon(notice_left_out, context)
    await trio.testing.wait_all_tasks_blocked()
    context.outer.step = 0
    for step in range(2):
        r.decide(opening(context.ledger.snapshot, theirs, learners=[ANN.peer]))
        context.changes.notify_all()
        await settled(partial(told, r, step + 1))
        assert context.alerts.warnings[WARNING] == left_out_warning.LATE
        r.decide(Commit(step, 0, digest_of(b"update")))
        context.outer.step = step + 1
        context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
    assert [each["step"] for each in r.said("left-out")] == [0, 1]
    r.decide(opening(context.ledger.snapshot, ours, theirs, learners=[ANN.peer]))
    context.changes.notify_all()
    await settled(lambda: WARNING not in context.alerts)


async def test_reduces_that_began_before_this_process_cause_no_warning(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=RULES)
    r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
    r.decide(opening(r.context.ledger.snapshot, Participant(ANN.peer, 16, 1), learners=[ANN.peer]))
    nursery.start_soon(notice_left_out, r.context)
    await trio.testing.wait_all_tasks_blocked()
    assert r.context.alerts.warnings == {}
