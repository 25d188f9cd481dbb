"""A node punches only for what it still wants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from p2ptrain.dataplane import RingKey
from p2ptrain.ids import RunId
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.punching.purposes import reduce_purpose, unwanted
from p2ptrain.node.state.punching import CHUNKS
from tests.node.rig import ANN, BOB, opening, rig


async def test_attempts_are_wanted_from_shortly_before_their_roster_until_the_next(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        me = r.context.me
        state = r.context.ledger.snapshot
        ours = [Participant(each, 16, 1) for each in (me, ANN.peer)]
        roster = replace(opening(state, *ours, learners=[ANN.peer]), step=3, attempt=1)
        r.set_chain(step=3, attempt=2, roster=roster)

        def why(step: int, attempt: int, line: str = state.line) -> str:
            about = reduce_purpose(RingKey(RunId(line), step, attempt, 0, ANN.peer))
            return unwanted(r.context, ANN.peer, about, 4)

        assert [why(3, 0), why(3, 1), why(3, 2), why(4, 0)] == ["that attempt is over", "", "", ""]
        later = [why(3, 3), why(4, 1), why(9, 0), why(1 << 40, 0)]
        assert set(later) == {"that attempt has not begun"}
        assert "branch" in why(3, 1, "0" * 64)
        current = reduce_purpose(RingKey(RunId(state.line), 3, 1, 0, BOB.peer))
        assert "do not take part" in unwanted(r.context, BOB.peer, current, 4)


async def test_chunks_are_always_wanted_over_one_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert unwanted(r.context, ANN.peer, CHUNKS, 1) == ""
        assert unwanted(r.context, ANN.peer, CHUNKS, 2) != ""
        for about in ("", "votes", "reduce", "reduce a b c", "reduce a 1 -1", "chunks 1"):
            assert "purpose" in unwanted(r.context, ANN.peer, about, 1)
