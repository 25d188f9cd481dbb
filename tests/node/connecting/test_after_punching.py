"""The relay's turn begins when punching has failed, and the failure is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import PeerSocket, plain_pair
from p2ptrain.errors import PeerUnreachable
from p2ptrain.node.connecting.opening import Opening, Way, open_all
from p2ptrain.node.connecting.ways import RELAY_S, after_punching
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import FAILED_S, Punching
from tests.node.rig import ANN, BOB, rig

SOON_S, LATER_S = 0.05, 30.0


async def hangs(opening: Opening) -> None:
    await trio.sleep_forever()


async def fails(opening: Opening) -> None:
    raise PeerUnreachable("no hole was punched", peer=opening.peer)


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
    ways = after_punching(context, punches, relayed)
    with trio.fail_after(LATER_S / 2):
        await open_all(opening, ways, left_s=LATER_S, overlap_s=SOON_S)
    return begun


@pytest.mark.parametrize(
    ("punches", "ends_in_s"), [(fails, LATER_S), (hangs, RELAY_S + SOON_S), (hangs, 0.0)]
)
async def test_relay_begins_when_punching_has_failed_or_takes_too_long(
    tmp_path: Path, punches: Way, ends_in_s: float
) -> None:
    async with rig(tmp_path) as r:
        assert await begun_by(r.context, punches, ends_in_s) == [ANN.peer]
        assert r.context.peers.punching.has_lately_failed(ANN.peer, r.context.now())


async def test_relay_is_not_used_if_punching_works(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert await begun_by(r.context, opens, LATER_S) == []
        assert not r.context.peers.punching.has_lately_failed(ANN.peer, r.context.now())


def test_failure_of_punching_is_forgotten_after_some_minutes_or_a_success() -> None:
    punching = Punching()
    punching.note_failed(ANN.peer, 10.0)
    assert punching.has_lately_failed(ANN.peer, 9.0 + FAILED_S)
    assert not punching.has_lately_failed(ANN.peer, 10.0 + FAILED_S)
    assert not punching.has_lately_failed(BOB.peer, 11.0)
    punching.note_reached(ANN.peer, 12.0)
    assert not punching.has_lately_failed(ANN.peer, 12.0)
