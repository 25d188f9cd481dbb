"""The statistics of injected faults (accounts), and the detection of nodes whose journals
(sightings) disagree.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.chaos.harness import report
from tests.chaos.harness.crew import Commit, Sighting
from tests.chaos.harness.points import Point, Role
from tests.chaos.harness.scenarios import Told
from tests.chaos.harness.strike import Account, Case, Fault
from tests.chaos.harness.verdict import disagreements

POINT = Point.parse("after:apply")


def account(fault: Fault, to_commit_s: float | None, role: Role = Role.OTHER) -> Account:
    return Account(Case(POINT, fault, role), "ann", to_commit_s, 1.0, 2.0, 3.0, 0.05)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert report.percentile([4.0, 2.0, 1.0, 3.0], share) == value


def test_line_contains_all_fields_of_an_account() -> None:
    told = account(Fault.STOP, 0.5)
    told.troubles.append("late")
    assert asdict(report.account_of(report.line_of(told))) == asdict(told)


def test_each_fault_has_its_own_limit() -> None:
    accounts = [account(Fault.KILL, 2.1), account(Fault.STOP, 11.9), account(Fault.CUT, None)]
    assert report.misses(accounts) == [
        "SIGKILL: the p99 of the time to the next commit is 2.10 s; the limit is 2.05 s"
    ]
    accounts[0].to_commit_s = 2.0
    assert report.misses(accounts) == []
    accounts[1].to_commit_s = 12.1
    assert report.misses(accounts) == [
        "SIGSTOP: the p99 of the time to the next commit is 12.10 s; the limit is 12.00 s"
    ]


def test_measures_are_separate_for_faults_and_roles() -> None:
    accounts = [
        account(Fault.KILL, 0.3, Role.PROPOSER),
        account(Fault.KILL, 0.5, Role.PROPOSER),
        account(Fault.KILL, 0.9),
    ]
    found = {
        each["measure"]: each["value"]
        for each in report.measures(accounts)
        if "next commit" in each["measure"]
    }
    assert found == {
        "SIGKILL of proposer: from the fault to the next commit, p50 of 2": 0.3,
        "SIGKILL of proposer: from the fault to the next commit, p99 of 2": 0.5,
        "SIGKILL of other: from the fault to the next commit, p50 of 1": 0.9,
        "SIGKILL of other: from the fault to the next commit, p99 of 1": 0.9,
    }


def test_scenarios_are_measured_unless_they_ended_without_a_result() -> None:
    lines = [report.line_of_scenario(Told("all died", each)) for each in (4.0, None)]
    (only,) = report.scenario_measures(lines)
    assert (only["value"], only["unit"]) == (4.0, "s")
    assert report.table([only]) == (
        "    4.00 s  all died: from the restart to the next commit   (it resumes by itself)"
    )


def test_readable_line_shows_times_and_troubles() -> None:
    told = account(Fault.CUT, 0.5)
    told.troubles.append("a fork")
    assert report.in_words(report.line_of(told)) == (
        "cut of other after:apply: to_commit_s 0.5; red_s 1.0; back_s 2.0; worst_gap_s 3.0; "
        "reduce_s 0.05; WRONG: a fork"
    )


def sighting(head: str, state: str, entry: str) -> Sighting:
    commits = {3: Commit(3, head, 5, True, 1.0)}
    return Sighting(commits, {4: state}, [(1.0, 8, entry, "commit")])


def test_nodes_that_report_the_same_do_not_disagree() -> None:
    same = sighting("h", "s", "e")
    assert disagreements({"ann": same, "ben": same, "cat": Sighting()}) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (sighting("H", "s", "e"), "head after step 3"),
        (sighting("h", "S", "e"), "state at step 4"),
        (sighting("h", "s", "E"), "entry 8"),
    ],
)
def test_every_difference_between_two_journals_is_found(other: Sighting, what: str) -> None:
    (found,) = disagreements({"ann": sighting("h", "s", "e"), "ben": other})
    assert found.startswith(what)


def test_node_that_contradicts_its_own_earlier_report_is_found() -> None:
    seen = sighting("h", "s", "e")
    seen.decided.append((2.0, 8, "another", "commit"))
    assert len(disagreements({"ann": seen})) == 1


def test_sighting_is_read_from_the_journal() -> None:
    seen = Sighting()
    events: list[dict[str, object]] = [
        {"event": "committed", "step": 0, "head": "h", "peers": 5, "took_part": True},
        {"event": "decided", "height": 2, "entry": "e", "kind": "commit"},
        {"event": "snapshot", "step": 2, "digest": "s"},
        {"event": "exchange-done", "seconds": 0.5},
        {"event": "peer", "health": "red", "peer": "p"},
        {"event": "peer", "health": "green", "peer": "p"},
        {"event": "stopped", "code": ""},
        {"event": "stopped", "code": "BUG"},
        {"event": "recovered", "what": "a torn tail"},
    ]
    for event in events:
        seen.take({"monotonic_s": 1.0, **event})
    assert seen.step == 1
    assert seen.commits == {0: Commit(0, "h", 5, True, 1.0)}
    assert (seen.decided, seen.snapshots) == ([(1.0, 2, "e", "commit")], {2: "s"})
    assert (seen.reduces_s, seen.reds) == ([0.5], [(1.0, "p")])
    assert len(seen.troubles) == 2
