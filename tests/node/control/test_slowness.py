"""A reduce that takes twice its usual time is reported once, with the peer that was silent
longest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.ledger.chain.values import Participant
from p2ptrain.names import label
from p2ptrain.node.control import slow_reduce_warning
from p2ptrain.node.control.slow_reduce_warning import (
    WARNING,
    Exchanges,
    caution_about,
    notice_slow_exchange,
)
from p2ptrain.ring import ReduceStatistics
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, NewRig, heartbeat, opening, rig, settled

REPORT = ReduceStatistics(1.0, 0.5, 0.1, 0.1, 0.1, 0.1, ())


def after(*known_s: float) -> Exchanges:
    exchanges = Exchanges()
    exchanges.known_s.extend(known_s)
    return exchanges


def test_usual_time_is_learnt_from_successful_reduces_only() -> None:
    exchanges = Exchanges()
    for now, under_way, done in [
        (0.0, True, False),
        (30.0, False, True),
        (40.0, True, False),
        (90.0, False, False),
        (100.0, True, False),
        (120.0, True, True),
        (135.0, False, True),
    ]:
        exchanges.look(under_way=under_way, done=done, now=now)
    assert list(exchanges.known_s) == [30.0, 20.0, 15.0]


@pytest.mark.parametrize(
    ("exchanges", "lasts_s", "is_slow"),
    [
        (after(40, 41, 43), 81, False),
        (after(40, 41, 43), 83, True),
        (after(1, 1, 1), 19, False),
        (after(1, 1, 1), 21, True),
        (after(1, 1), 500, False),
    ],
)
def test_slow_means_twice_the_usual_and_long_enough_to_matter(
    exchanges: Exchanges, lasts_s: float, is_slow: bool
) -> None:
    assert exchanges.look(under_way=True, done=False, now=5.0) is None
    told = exchanges.look(under_way=True, done=False, now=5.0 + lasts_s)
    assert told == (lasts_s if is_slow else None)


async def test_silent_peer_is_named(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        parts = r.parts
        r.decide(replace(opening(parts.ledger.state), learners=(ANN.peer,)))
        r.decide(opening(parts.ledger.state, Participant(ANN.peer, 16, 1), learners=(ANN.peer,)))
        parts.peers.note_heartbeat(ANN.peer, heartbeat(r.run.id), parts.now() - 71)
        caution = caution_about(parts, 94.0, 41.0)
        said = (
            "this exchange has taken 94 s so far; the usual time is 41 s; "
            f"{label(ANN.peer)} was last heard 71 s ago"
        )
        assert (caution.code, caution.what) == ("SYNC-SLOW", said)
        assert f"p2ptrain status --home {parts.home.root}" in caution.do
        parts.peers.note_heartbeat(ANN.peer, heartbeat(r.run.id, serial=2), parts.now())
        assert (
            caution_about(parts, 94.0, 41.0).what
            == "this exchange has taken 94 s so far; the usual time is 41 s"
        )


async def test_warning_lasts_as_long_as_the_reduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(slow_reduce_warning, "LOOK_S", 0.01)
    monkeypatch.setattr(slow_reduce_warning, "PATIENCE_S", 0.1)
    r = await new_rig(tmp_path)
    parts, standing = r.parts, r.parts.standing
    monkeypatch.setattr(slow_reduce_warning, "KNOWN_MIN", 1)
    nursery.start_soon(notice_slow_exchange, parts)
    standing.averaging = 0
    parts.changes.ring()
    await trio.testing.wait_all_tasks_blocked()
    standing.averaging, standing.last_reduce = None, REPORT
    parts.changes.ring()
    await trio.testing.wait_all_tasks_blocked()
    standing.averaging = 1
    parts.changes.ring()
    await settled(lambda: WARNING in standing.warnings)
    assert [each["step"] for each in r.said("exchange-slow")] == [1]
    standing.averaging = None
    parts.changes.ring()
    await settled(lambda: WARNING not in standing.warnings)
