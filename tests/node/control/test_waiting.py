"""A wait that lasts twice as long as usual is reported once, with its reason and likely cause."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.names import label, peer_name
from p2ptrain.node.control.status import status
from p2ptrain.node.control.waiting import StateDurations, notice_waits
from p2ptrain.observe.states import (
    FOR_OTHERS,
    Exchanging,
    FetchingSnapshot,
    Serving,
    StandingBy,
    State,
    Training,
)
from p2ptrain.observe.waits import Wait, clock_time
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, NewRig, heartbeat, opening, settled

TWO: dict[str, Any] = {"rules": policy(participants_min=2)}
NINE = 1_800_000_000.0
"""A time in Unix seconds."""


def test_usual_duration_of_a_state_is_learnt() -> None:
    durations = StateDurations()
    for number in range(4):
        assert durations.overdue(StandingBy(), 0, 100.0 * number) is None
        assert durations.overdue(Training(1, 2), 0, 100.0 * number + 30) is None
    assert durations.usual_s(StandingBy()) == 30.0
    assert durations.overdue(StandingBy(), 0, 400.0) is None
    assert durations.overdue(StandingBy(), 0, 459.0) is None
    assert durations.overdue(StandingBy(), 0, 461.0) == 61.0


def test_state_of_unknown_duration_is_reported_after_a_minute() -> None:
    states: tuple[State, ...] = (StandingBy(), Serving(), FetchingSnapshot(1, 2))
    for state in states:
        durations = StateDurations()
        assert [durations.overdue(state, 0, now) for now in (0.0, 60.0, 61.0)] == [None, None, 61.0]
    unwatched: tuple[State, ...] = (Training(1, 2), Exchanging())
    for other in unwatched:
        assert StateDurations().limit_s(other) is None


def test_progress_starts_the_time_of_a_state_again() -> None:
    durations = StateDurations()
    assert durations.overdue(FetchingSnapshot(1, 9), 0, 0.0) is None
    assert durations.overdue(FetchingSnapshot(2, 9), 0, 70.0) is None
    assert durations.overdue(Serving(), 1, 80.0) is None
    assert durations.overdue(Serving(), 2, 150.0) is None


def test_wait_says_for_whom_since_when_until_when_and_what_then() -> None:
    wait = Wait("a quorum is ready", NINE, (ANN.peer,), NINE + 90, "then they go on", "it is Ann")
    assert wait.words(NINE + 40) == (
        f"a quorum is ready: {peer_name(ANN.peer)}; since {clock_time(NINE)} (40 s); "
        f"until {clock_time(NINE + 90)}; then they go on; it is Ann"
    )
    many = replace(wait, peers=(ANN.peer,) * 7)
    assert many.who.endswith(f"{peer_name(ANN.peer)} and 2 more")


def test_seed_is_not_overdue_while_outer_steps_take_their_usual_time() -> None:
    """Entries alternate: a roster follows a commit at once, and a commit follows a roster after the
    inner steps. A seed once warned in each outer step, because it measured the entries."""
    durations = StateDurations()
    told = [durations.overdue(Serving(), step, 25.0 * step + 24) for step in range(9)]
    assert told == [None] * 9
    assert durations.usual_s(Serving()) == 25.0
    assert durations.overdue(Serving(), 8, 25.0 * 8 + 24 + 51) == 51.0


async def test_node_that_lacks_participants_says_so(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """The node once showed that it waited for others to finish, although nobody else took part."""
    r = await new_rig(tmp_path, **TWO)
    context = r.context
    context.ledger.core.handle(Ready(context.me, 0, 32, 2), context.now())
    context.state.current = StandingBy(FOR_OTHERS)
    nursery.start_soon(partial(notice_waits, context, look_s=0.01, wall=lambda: NINE))
    await settled(lambda: context.shown == StandingBy("1 more participant needed"))
    said = await status(context, wall=lambda: NINE + 300)
    assert said.waits_for == (
        f"1 more participant needed; since {clock_time(NINE)} (5 min); "
        "the members exchange as soon as there are enough of them"
    )
    assert said.waiting == {
        "for": "1 more participant needed",
        "peers": [],
        "names": [],
        "since": NINE,
        "until": None,
        "then": "the members exchange as soon as there are enough of them",
        "suspect": "",
    }


async def test_long_wait_is_reported_once_with_the_silent_peer(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **TWO)
    context = r.context
    r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
    context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), context.now() - 71)
    context.state.current = StandingBy(FOR_OTHERS)
    watch = partial(notice_waits, context, unknown_s=0.05, look_s=0.01, wall=lambda: NINE)
    nursery.start_soon(watch)
    await settled(lambda: bool(r.said("waiting")))
    caution = context.alerts.warnings["waiting"]
    assert caution.code == "WAITING"
    assert caution.what.startswith("standing by (")
    assert f"the likely cause is {label(ANN.peer)}, last heard 71 s ago" in caution.do
    for _ in range(5):
        context.changes.notify_all()
        await trio.lowlevel.checkpoint()
    assert len(r.said("waiting")) == 1
    context.state.current = Training(1, 2)
    context.changes.notify_all()
    await settled(lambda: "waiting" not in context.alerts)
