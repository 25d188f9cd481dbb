"""A reduce that takes more than 20 s and more than twice the usual time is reported to the user:
since when, for whom the members wait, and which peer has been silent longest."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.ledger.chain.values import Participant
from p2ptrain.ledger.messages.peer_reports import ReduceFailed
from p2ptrain.names import label, peer_name
from p2ptrain.node.control.slow_reduce_warning import (
    KNOWN_MIN,
    WARNING,
    ReduceDurations,
    caution_about,
    notice_slow_reduce,
)
from p2ptrain.observe.waits import clock_time
from p2ptrain.ring import ReduceStatistics
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, NewRig, heartbeat, opening, rig, settled

NINE = 1_800_000_000.0
"""A time in Unix seconds."""

REPORT = ReduceStatistics(1.0, 0.5, 0.1, 0.1, 0.1, 0.1, ())


def after(*known_s: float) -> ReduceDurations:
    exchanges = ReduceDurations()
    exchanges.known_s.extend(known_s)
    return exchanges


def test_usual_time_is_learnt_only_from_successful_reduces() -> None:
    exchanges = ReduceDurations()
    for now, under_way, done in [
        (0.0, True, False),
        (30.0, False, True),
        (40.0, True, False),
        (90.0, False, False),
        (100.0, True, False),
        (120.0, True, True),
        (135.0, False, True),
    ]:
        exchanges.check(under_way=under_way, done=done, now=now)
    assert list(exchanges.known_s) == [30.0, 20.0, 15.0]


@pytest.mark.parametrize(
    ("exchanges", "lasts_s", "is_slow"),
    [
        (after(40, 41, 43), 81, False),
        (after(40, 41, 43), 83, True),
        (after(1, 1, 1), 19, False),
        (after(1, 1, 1), 21, True),
        (after(1, 1), 59, False),
        (after(1, 1), 61, True),
    ],
)
def test_slow_reduce_exceeds_both_twice_the_usual_time_and_20_seconds(
    exchanges: ReduceDurations, lasts_s: float, is_slow: bool
) -> None:
    assert exchanges.check(under_way=True, done=False, now=5.0) is None
    told = exchanges.check(under_way=True, done=False, now=5.0 + lasts_s)
    assert told == (lasts_s if is_slow else None)


async def test_warning_says_since_when_for_whom_and_names_the_silent_peer(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        context = r.context
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        r.decide(
            opening(context.ledger.snapshot, Participant(ANN.peer, 16, 1), learners=(ANN.peer,))
        )
        context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), context.now() - 71)
        caution = caution_about(context, 94.0, 41.0, NINE)
        said = f"this exchange has taken 94 s so far, since {clock_time(NINE - 94)}, usually 41 s"
        assert (caution.code, caution.what) == ("SYNC-SLOW", said)
        assert caution.do == (
            f"an exchange is in progress: {peer_name(ANN.peer)}; "
            f"the likely cause is {label(ANN.peer)}, last heard 71 s ago; "
            "if a peer delays the exchange for too long, the members continue without it; "
            f"p2ptrain status --home {context.home.root} shows the rates"
        )


async def test_warning_says_until_when_the_members_wait(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1, patience_s=30.0)) as r:
        context, both = r.context, (ANN.peer, r.context.me)
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        roster = opening(
            context.ledger.snapshot,
            *(Participant(peer, 16, 1) for peer in both),
            learners=(ANN.peer,),
        )
        r.decide(roster)
        failed = ReduceFailed(context.me, roster.step, roster.attempt)
        context.ledger.core.handle(failed, context.now())
        caution = caution_about(context, 94.0, None, NINE)
        assert caution.what.endswith(f"since {clock_time(NINE - 94)}")
        told = (
            "an exchange failed; waiting for the other participants' reports: "
            rf"{peer_name(ANN.peer)}; until \d\d:\d\d:\d\d; "
            "then the members decide without the missing reports; .*"
        )
        assert re.fullmatch(told, caution.do)


async def test_warning_is_shown_until_the_slow_reduce_ends(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    context = r.context
    nursery.start_soon(partial(notice_slow_reduce, context, patience_s=0.1, look_s=0.01))
    for step in range(KNOWN_MIN):
        r.context.reduce.averaging = step
        context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        r.context.reduce.averaging, r.context.reduce.last_ring = None, replace(REPORT)
        context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
    r.context.reduce.averaging = KNOWN_MIN
    context.changes.notify_all()
    await settled(lambda: WARNING in r.context.alerts.warnings)
    assert [each["step"] for each in r.said("exchange-slow")] == [KNOWN_MIN]
    r.context.reduce.averaging = None
    context.changes.notify_all()
    await settled(lambda: WARNING not in r.context.alerts.warnings)
