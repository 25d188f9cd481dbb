"""Leaving: a goodbye while others can hear it, and a message about what is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.ledger.chain.values import Participant
from p2ptrain.ledger.messages.peer_reports import Leaving
from p2ptrain.node.control import leaving
from p2ptrain.node.control.leaving import goodbye_text, leave
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, Rig, opening, rig, settled


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "GOODBYE_S", 0.01)


async def left_at_once(r: Rig) -> bool:
    """Whether `leave` returns without waiting."""
    with trio.move_on_after(10.0) as scope:
        await leave(r.parts)
    return not scope.cancelled_caught


def two_voters(r: Rig) -> None:
    state = r.parts.ledger.state
    r.parts.ledger.state = replace(
        state, voters=(r.parts.me, ANN.peer), since={r.parts.me: 0, ANN.peer: 0}
    )


async def test_single_node_leaves_without_waiting(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert await left_at_once(r)
        assert r.heard() == [Leaving(r.parts.me)]
        assert r.parts.standing.leaving
        assert r.said("left") == [{"event": "left", "member": True}]


async def test_node_with_only_dead_neighbours_does_not_wait(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        two_voters(r)
        r.parts.detector.watch(ANN.peer, r.parts.now())
        r.parts.detector.hint_lost(ANN.peer, r.parts.now())
        assert await left_at_once(r)


async def test_member_waits_until_the_others_agree_to_go_on_without_it(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        two_voters(r)
        r.parts.detector.note_arrival(ANN.peer, r.parts.now())
        nursery.start_soon(leave, r.parts)
        await settled(lambda: r.parts.standing.leaving)
        assert r.said("left") == []
        r.parts.ledger.state = replace(
            r.parts.ledger.state, voters=(ANN.peer,), since={ANN.peer: 0}
        )
        r.parts.changes.notify_all()
        await settled(lambda: r.said("left") == [{"event": "left", "member": False}])


async def test_leaving_ends_after_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LEAVE_S", 0.05)
    async with rig(tmp_path) as r:
        two_voters(r)
        r.parts.detector.note_arrival(ANN.peer, r.parts.now())
        assert await left_at_once(r)


Change = Callable[[Rig], None]


def halfway(r: Rig) -> None:
    r.parts.standing.inner_step, r.parts.standing.inner_steps = 3, 8


def done(r: Rig) -> None:
    halfway(r)
    r.parts.standing.work = LocalWork(0, (0, 1), 32)


@pytest.mark.parametrize(
    ("change", "lost"), [(halfway, "3 of 8 inner steps will be lost"), (done, "")]
)
async def test_goodbye_says_what_will_be_lost(tmp_path: Path, change: Change, lost: str) -> None:
    async with rig(tmp_path) as r:
        two_voters(r)
        change(r)
        assert ("will be lost" in goodbye_text(r.parts)) == bool(lost)
        assert lost in goodbye_text(r.parts)
        assert "only voter" not in goodbye_text(r.parts)


async def test_only_voter_is_told_that_the_run_stops_without_it(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1), steps=1) as r:
        assert "only voter" in goodbye_text(r.parts)
        r.decide(opening(r.parts.ledger.state, Participant(r.parts.me, 16, 1)))
        assert "only voter" in goodbye_text(r.parts)
