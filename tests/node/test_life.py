"""What a node says at the end of its run, and on which day it said it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.ledger.state import Phase
from p2ptrain.ledger.values import Commit, Participant
from p2ptrain.node.life import notice_the_end
from p2ptrain.node.main import _say
from p2ptrain.ring import ReduceReport
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import Rig, opening, rig, settled

REPORT = ReduceReport(1.0, 0.5, 0.1, 0.1, 0.1, 0.1, ())


def end(r: Rig) -> None:
    ledger = r.parts.ledger
    while ledger.state.phase is not Phase.ENDED:
        r.decide(opening(ledger.state, Participant(r.parts.me, 16, 1)))
        r.decide(Commit(ledger.state.step, 0, digest_of(b"update")))
    r.parts.outer.step = ledger.state.step


@pytest.mark.parametrize(("averaged", "codes"), [(False, ["RUN-ENDED"]), (True, [])])
async def test_who_comes_after_the_end_is_told_so_and_who_took_part_is_not_warned(
    averaged: bool, codes: list[str], tmp_path: Path
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r, trio.open_nursery() as nursery:
        r.parts.standing.last_reduce = REPORT if averaged else None
        end(r)
        nursery.start_soon(notice_the_end, r.parts)
        await settled(lambda: bool(r.said("run-ended")))
        await trio.testing.wait_all_tasks_blocked()
        cautions = list(r.parts.standing.warnings.values())
        assert [each.code for each in cautions] == codes
        assert all(f"--home {r.parts.home.root}" in each.do for each in cautions)
        nursery.cancel_scope.cancel()


def test_each_line_says_on_which_day_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    _say(0, "training\x1b[2J")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  training·\[2J\n", capsys.readouterr().err)
