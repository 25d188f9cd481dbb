"""A node tells its owner that the run has ended, and each line of its output has a timestamp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.control.live_line import open_live_line
from p2ptrain.node.main import _print_line
from p2ptrain.node.tasks import notice_the_end
from tests.node.rig import ANN, NewRig, settled
from tests.node.training.test_validating import TWO, commit

OPTION: dict[str, Any] = {"rules": TWO}


@pytest.mark.parametrize(("took_part", "codes"), [(False, ["RUN-ENDED"]), (True, [])])
async def test_node_that_joined_too_late_is_told_that_the_run_has_ended(
    took_part: bool, codes: list[str], tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """A node that took part is not warned. It need not remember that, even after a restart: the
    ledger records the participants."""
    r = await new_rig(tmp_path, **OPTION)
    while r.context.ledger.snapshot.phase is not Phase.ENDED:
        commit(r, r.context.me if took_part else ANN.peer)
    nursery.start_soon(notice_the_end, r.context)
    await settled(lambda: bool(r.said("run-ended")))
    await trio.testing.wait_all_tasks_blocked()
    cautions = list(r.context.alerts.warnings.values())
    assert [each.code for each in cautions] == codes
    assert all(f"--home {r.context.home.root}" in each.do for each in cautions)


def test_each_line_has_a_timestamp_and_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_line(False, open_live_line(quiet=False), "training\x1b[2J")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  training·\[2J\n", capsys.readouterr().err)
