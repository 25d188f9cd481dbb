"""A short run of the harness with five real nodes. In outer steps without faults, they pass every
point at which the harness can stop a node. Then one node is killed, and later all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.errors import LocalProtocolError
from p2ptrain.testing.network_namespaces import opened
from tests.chaos.harness import scenarios, strike, verdict
from tests.chaos.harness.crew import Crew, Passed, crew
from tests.chaos.harness.points import DEED, Point, Role, all_points
from tests.chaos.harness.strike import Case, Fault

STRIKES_MAX = 3
"""Maximum number of kills. One quick recovery is enough. On a slow machine, the run may recover
too slowly from one or two kills; if p2ptrain is broken, it recovers too slowly from all of them.
"""

CALM_S = 0.5
"""Seconds per inner step. Five nodes then use half a core, so the test also runs on a machine with
a single core.
"""


def passed(five: Crew, *, later_round: bool = False) -> set[Passed]:
    return {
        each
        for node in five.nodes
        for each in node.passed
        if DEED[each.point.deed].later_round == later_round
    }


def expected(*, later_round: bool = False) -> set[Passed]:
    return {
        Passed(point, role)
        for point in all_points()
        for role in DEED[point.deed].roles
        if DEED[point.deed].later_round == later_round
    }


def soon_over(five: Crew, case: Case) -> bool:
    account = strike.play(five, case)
    assert account.troubles == []
    assert account.to_commit_s is not None
    return account.to_commit_s < 10


@pytest.mark.needs_torch
def test_every_point_is_reached_and_kills_delay_the_run_only_briefly(tmp_path: Path) -> None:
    kill = Case(Point.parse("after:send-promise"), Fault.KILL, Role.OTHER)
    with opened(5) as place:
        with crew(tmp_path, place, inner_step_s=CALM_S) as five:
            five.wait_for(
                "all points of ordinary steps",
                lambda: passed(five) >= expected(),
                deadline_s=150,
            )
            assert any(soon_over(five, kill) for _ in range(STRIKES_MAX))
            assert passed(five, later_round=True) >= expected(later_round=True)
            told = scenarios.play(five, "everybody")
            assert told.troubles == ()
        assert verdict.at_the_end(five) == []


def test_links_cannot_be_cut_when_all_nodes_use_loopback() -> None:
    with opened(5, loopback=True) as place:
        assert not place.can_cut
        assert len({place.address(number)[1] for number in range(5)}) == 5
        assert place.inside(0, ["python"]) == ["python"]
        with pytest.raises(LocalProtocolError, match="no cable"):
            place.cut(0)
        with pytest.raises(LocalProtocolError, match="no cable"):
            place.heal(0)
