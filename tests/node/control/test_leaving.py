"""A node that leaves the run tells the other peers before it ends, and tells its user which work is
lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from p2ptrain.ledger.chain.values import Participant
from p2ptrain.ledger.messages.peer_reports import Leaving
from p2ptrain.node.control.leaving import goodbye_text, leave
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Rig, opening, rig, settled


async def left_at_once(r: Rig, limit_s: float = 20.0) -> bool:
    """Call `leave`, and return whether it returns within 10 s, without waiting for a new roster."""
    with trio.move_on_after(10.0) as scope:
        await leave(r.context, limit_s=limit_s, goodbye_s=0.01)
    return not scope.cancelled_caught


def two_voters(r: Rig) -> None:
    r.set_chain(voters=(r.context.me, ANN.peer), since={r.context.me: 0, ANN.peer: 0})


async def test_single_node_leaves_without_waiting(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert await left_at_once(r)
        assert r.heard() == [Leaving(r.context.me)]
        assert r.context.state.leaving
        assert r.said("left") == [{"event": "left", "member": True}]


async def test_node_does_not_wait_if_all_other_members_are_down(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        two_voters(r)
        r.context.peers.detector.watch(ANN.peer, r.context.now())
        r.context.peers.detector.hint_lost(ANN.peer, r.context.now())
        assert await left_at_once(r)


async def test_leaving_member_waits_for_a_roster_without_it(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        two_voters(r)
        r.context.peers.detector.note_arrival(ANN.peer, r.context.now())
        nursery.start_soon(leave, r.context)
        await settled(lambda: r.context.state.leaving)
        assert r.said("left") == []
        r.set_chain(voters=(ANN.peer,), since={ANN.peer: 0})
        r.context.changes.notify_all()
        await settled(lambda: r.said("left") == [{"event": "left", "member": False}])


async def test_leaving_member_waits_only_for_a_limited_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        two_voters(r)
        r.context.peers.detector.note_arrival(ANN.peer, r.context.now())
        assert await left_at_once(r, limit_s=0.05)


Change = Callable[[Rig], None]


def halfway(r: Rig) -> None:
    r.context.trainer.inner_step, r.context.trainer.inner_steps = 3, 8


def done(r: Rig) -> None:
    halfway(r)
    r.context.trainer.work = LocalWork(0, (0, 1), 32)


@pytest.mark.parametrize(
    ("change", "lost"), [(halfway, "3 of 8 inner steps will be lost"), (done, "")]
)
async def test_user_is_told_which_work_leaving_loses(
    tmp_path: Path, change: Change, lost: str
) -> None:
    async with rig(tmp_path) as r:
        two_voters(r)
        change(r)
        assert ("will be lost" in goodbye_text(r.context)) == bool(lost)
        assert lost in goodbye_text(r.context)
        assert "only voter" not in goodbye_text(r.context)


async def test_only_voter_is_warned_that_the_run_stops_without_it(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1), steps=1) as r:
        assert "only voter" in goodbye_text(r.context)
        r.decide(opening(r.context.ledger.snapshot, Participant(r.context.me, 16, 1)))
        assert "only voter" in goodbye_text(r.context)
