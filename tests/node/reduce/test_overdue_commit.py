"""A participant that has a result gives up if too few others ever report one."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.errors import ReduceAborted
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.ledger.messages.peer_reports import ReduceDone, ReduceFailed
from p2ptrain.node.reduce.overdue_commit import LATE_S_MIN, wait_for_commit
from p2ptrain.store import digest_of
from tests.node.rig import ANN, BOB, Rig, opening, rig

UPDATE = digest_of(b"the update")


def with_result(r: Rig) -> Roster:
    """Open a reduce of this node, Ann and Bob. Only this node has reported its result."""
    context = r.context
    peers = (context.me, ANN.peer, BOB.peer)
    others = [ANN.peer, BOB.peer]
    each = (Participant(peer, 16, 1) for peer in peers)
    roster = opening(context.ledger.snapshot, *each, learners=others)
    r.set_chain(roster=roster)
    context.ledger.core.reports.note(ReduceDone(context.me, 0, 0, UPDATE))
    return roster


@pytest.mark.parametrize("took_s", [0.0, 100.0])
async def test_participants_that_fall_silent_after_an_exchange_are_accused(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, took_s: float
) -> None:
    async with rig(tmp_path) as r:
        roster, began_s = with_result(r), trio.current_time()
        with pytest.raises(ReduceAborted, match="no majority") as caught:
            await wait_for_commit(r.context, roster, took_s)
        assert caught.value.suspects == (ANN.peer, BOB.peer)
        late_s = took_s + max(LATE_S_MIN, r.context.ledger.rules.grace_s)
        assert trio.current_time() - began_s == pytest.approx(late_s)


async def test_participant_that_reported_a_failure_is_not_accused_of_silence(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rig(tmp_path) as r:
        roster = with_result(r)
        r.context.ledger.core.reports.note(ReduceFailed(ANN.peer, 0, 0, ()))
        with pytest.raises(ReduceAborted) as caught:
            await wait_for_commit(r.context, roster, 0.0)
        assert caught.value.suspects == (BOB.peer,)


async def test_silent_participant_does_not_matter_once_a_majority_has_the_result(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    async with rig(tmp_path) as r:
        roster = with_result(r)
        r.context.ledger.core.reports.note(ReduceDone(ANN.peer, 0, 0, UPDATE))
        ended = trio.Event()

        async def wait() -> None:
            await wait_for_commit(r.context, roster, 0.0)
            ended.set()

        nursery.start_soon(wait)
        with trio.move_on_after(100):
            await ended.wait()
        assert not ended.is_set()
        r.set_chain(roster=None)
        r.context.changes.notify_all()
        with trio.fail_after(1):
            await ended.wait()
