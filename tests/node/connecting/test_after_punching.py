"""The relay begins 0.3 s after the calls through NATs, and a failure of punching is remembered."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import PeerSocket, plain_pair
from p2ptrain.dataplane.racing import OVERLAP_S
from p2ptrain.errors import PeerUnreachable
from p2ptrain.node.connecting.opening import Opening, Way, open_all
from p2ptrain.node.connecting.sequence import Begins, Sequence, Step, Turn
from p2ptrain.node.connecting.ways import RELAY_S, after_calls, in_order
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import Punching
from tests.node.rig import ANN, BOB, rig

SOON_S, LATER_S = 0.05, 30.0


async def hangs(opening: Opening) -> None:
    await trio.sleep_forever()


async def fails(opening: Opening) -> None:
    raise PeerUnreachable("no hole was punched", peer=opening.peer)


async def calls(opening: Opening) -> None:
    """Both ends call each other, and nothing comes of it for a long time."""
    opening.calling.set()
    await trio.sleep_forever()


async def opens(opening: Opening) -> None:
    opening.deliver(0, opening_end())


def opening_end() -> PeerSocket:
    ours, theirs = plain_pair(BOB.peer, ANN.peer)
    theirs.close()
    return ours


async def begun_by(context: Context, punches: Way, ends_in_s: float) -> list[str]:
    """Try to punch, and return whether the relay's turn began before punching had ended."""
    begun: list[str] = []

    async def relayed(opening: Opening) -> None:
        begun.append(opening.peer)
        opening.deliver(0, opening_end())

    ends = context.now() + ends_in_s
    opening = Opening(ANN.peer, "", {0: {}}, ends, lambda number, connection: connection.close())
    ways = after_calls(context, punches, relayed)
    with trio.fail_after(LATER_S / 2):
        await open_all(opening, ways, left_s=LATER_S, overlap_s=SOON_S)
    return begun


@pytest.mark.parametrize(
    ("punches", "ends_in_s"),
    [(fails, LATER_S), (calls, LATER_S), (hangs, RELAY_S + SOON_S), (hangs, 0.0)],
)
async def test_relay_begins_when_punching_has_failed_or_takes_long(
    tmp_path: Path, punches: Way, ends_in_s: float
) -> None:
    async with rig(tmp_path) as r:
        assert await begun_by(r.context, punches, ends_in_s) == [ANN.peer]
        assert r.context.peers.punching.failed_ago_s(ANN.peer, r.context.now()) < LATER_S


async def test_relay_is_not_used_if_punching_works(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert await begun_by(r.context, opens, LATER_S) == []
        assert r.context.peers.punching.failed_ago_s(ANN.peer, r.context.now()) == inf


async def test_relay_does_not_wait_for_the_deadline_of_the_calls(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        began_s = r.context.now()
        await begun_by(r.context, calls, LATER_S)
        assert OVERLAP_S <= r.context.now() - began_s < LATER_S / 2


async def test_punching_follows_a_relay_that_has_failed(tmp_path: Path) -> None:
    """The ports of both ends change, so punching is the last resort."""
    begun: list[str] = []

    async def relayed(opening: Opening) -> None:
        begun.append("relay")
        raise PeerUnreachable("no relay works", peer=opening.peer)

    async def punches(opening: Opening) -> None:
        begun.append("punch")
        await opens(opening)

    order = Sequence((Turn(Step.RELAY), Turn(Step.PUNCH, Begins.AFTER_FAILURE)), "")
    async with rig(tmp_path) as r:
        ends = r.context.now() + LATER_S
        opening = Opening(ANN.peer, "", {0: {}}, ends, lambda number, it: it.close())
        ways = in_order(r.context, order, {Step.RELAY: relayed, Step.PUNCH: punches})
        await open_all(opening, ways, left_s=LATER_S)
        assert begun == ["relay", "punch"]


def test_failure_of_punching_is_remembered_until_a_success() -> None:
    punching = Punching()
    punching.note_failed(ANN.peer, 10.0)
    assert punching.failed_ago_s(ANN.peer, 17.0) == 7.0
    assert punching.failed_ago_s(BOB.peer, 11.0) == inf
    assert not punching.has_worked_since(ANN.peer, 0.0)
    punching.note_reached(ANN.peer, 12.0)
    assert punching.failed_ago_s(ANN.peer, 12.0) == inf
    assert [punching.has_worked_since(ANN.peer, at_s) for at_s in (12.0, 13.0)] == [True, False]
