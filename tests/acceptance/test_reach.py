"""The measures of `scripts/accept reach`, with recorded output in place of the programs.

The outputs are those of real runs, shortened to the fields that the measures read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.measures import reach
from tests.acceptance.measures.reach_claims import Claim
from tests.acceptance.measures.setting import Done, Line, Setting
from tests.wan.harness.punching import PAIRS

Take = Callable[[Setting], Iterator[Line]]

UNABLE = "the emulator cannot run here: it makes network namespaces, so it needs root\n"

SIX = {
    "network": "six-dialable",
    "commits": 10,
    "attempts_lost_to_connecting": 0,
    "connecting_s": [0.258, 0.783],
    "transfer_s": [0.114, 0.244],
    "exchange_s": [0.4, 0.887],
    "relayed": 0,
}
SIX_NATS = SIX | {"network": "six-nats", "connecting_s": [1.003, 1.41], "exchange_s": [0.48, 1.6]}
FIVE_SYMMETRIC = SIX_NATS | {"network": "six-symmetric", "relayed": 200}

VOTES = {
    "network": "nats",
    "voters": 4,
    "commits": 20,
    "median_s": 0.933,
    "lost_messages": 0,
}
VOTES_DIALABLE = VOTES | {"network": "dialable", "median_s": 0.991}

FINDING = {"name": "clock", "level": "good", "said": "the monotonic clock is steady"}
DOCTOR = {"findings": [FINDING], "status": 0, "seconds": 12.8}


def given(folder: Path, name: str, *objects: dict[str, object], quick: bool = False) -> Setting:
    """Return a setting in which these objects are the earlier result `name`."""
    path = folder / name
    text = "".join(json.dumps(each) + "\n" for each in objects)
    path.write_text(f"wan: 2881 packets passed, 0 lost\n{text}| cone × cone | 40 of 40 |\n")
    return Setting(folder, quick, given={name: path})


def shown(take: Take, setting: Setting) -> list[tuple[object, object]]:
    """Return the value of each line, and whether it is ok."""
    return [(each["value"], each["ok"]) for each in take(setting)]


@pytest.mark.parametrize(("in_time", "ok"), [(40, True), (39, True), (38, False)])
def test_one_slow_try_of_forty_is_allowed(tmp_path: Path, in_time: int, ok: bool) -> None:
    pairs = [{"pair": pair, "tries": 40, "in_time": in_time} for pair in PAIRS]
    found = shown(reach.punching, given(tmp_path, "punching", *pairs))
    assert found == [(f"{in_time} of 40", ok)] * len(pairs)


def test_pair_that_was_not_measured_has_a_line(tmp_path: Path) -> None:
    one = {"pair": "cone:cone", "tries": 40, "in_time": 40}
    first, *others = shown(reach.punching, given(tmp_path, "punching", one))
    assert first == ("40 of 40", True)
    missing = ("not measured: the given result of punching does not contain it", False)
    assert others == [missing] * (len(PAIRS) - 1)


def test_fewer_tries_than_required_are_not_accepted(tmp_path: Path) -> None:
    pairs = [{"pair": pair, "tries": 4, "in_time": 4} for pair in reach.PAIRS_QUICK]
    assert ("4 of 4", False) in shown(reach.punching, given(tmp_path, "punching", *pairs))
    quick = given(tmp_path, "punching", *pairs, quick=True)
    assert shown(reach.punching, quick) == [("4 of 4", True)] * 2


def test_relayed_pair_is_reported_as_its_program_judges_it(tmp_path: Path) -> None:
    told = {"measure": "x", "value": "19 of 20", "required": "all", "ok": False, "nat": "sym:sym"}
    (line,) = reach.relayed_pair("sym:sym", given(tmp_path, "connecting", told))
    assert line == told | {"measure": "relayed edges with 4 streams: sym:sym"}


def test_six_nodes_are_compared_with_dialable_ones(tmp_path: Path) -> None:
    good = given(tmp_path, "exchanges", SIX, SIX_NATS)
    assert shown(reach.six_nodes, good) == [
        ("0 lost in 10 outer steps", True),
        (1.41, True),
        (1.2, True),
    ]
    slow = SIX_NATS | {
        "attempts_lost_to_connecting": 1,
        "connecting_s": [1.0, 4.1],
        "exchange_s": [0.5, 1.6],
    }
    bad = given(tmp_path, "exchanges", SIX, slow)
    assert shown(reach.six_nodes, bad) == [
        ("1 lost in 10 outer steps", False),
        (4.1, False),
        (1.25, False),
    ]


def test_network_that_the_program_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "exchanges"
    path.write_text("error: argument --network: invalid choice: 'six-nats' (choose from 'nats')\n")
    (line,) = reach.six_nodes(Setting(tmp_path, given={"exchanges": path}))
    why = "not measured: tests/wan/harness/exchanges.py does not know six-nats"
    assert (line["value"], line["ok"]) == (why, False)


@pytest.mark.parametrize(("steps", "ok"), [(10, True), (9, False)])
def test_symmetric_nats_must_complete_all_outer_steps(tmp_path: Path, steps: int, ok: bool) -> None:
    found = given(tmp_path, "exchanges", FIVE_SYMMETRIC | {"commits": steps})
    assert shown(reach.symmetric, found) == [(f"{steps} outer steps", ok), (1.41, True)]


def test_relays_costs_are_reported_unchanged_but_for_a_prefix(tmp_path: Path) -> None:
    told: list[dict[str, object]] = [
        {"measure": "CPU s per GB (103 MB/s)", "value": 0.195, "required": "0.5", "ok": True},
        {"measure": "relayed rate relative to its limit", "value": 1.2, "ok": False},
        {"measure": "relayed bytes relative to the daily limit", "value": 1.0, "ok": True},
    ]
    for nat, read, name in (
        ("", "relaying", "relay"),
        ("veth", "relaying-cards", "relay, veth"),
        ("sym:sym", "relaying-emulated", "relay, sym:sym"),
    ):
        found = list(reach.relay_cost(nat, given(tmp_path, read, *told)))
        assert found == [it | {"measure": f"{name}: {it['measure']}"} for it in told]
        *_, missing = reach.relay_cost(nat, given(tmp_path, read, *told[:2]))
        assert missing["ok"] is False


def test_one_wrong_verdict_is_not_accepted(tmp_path: Path) -> None:
    cases = [{"case": "open", "tries": 20, "right": 20}, {"case": "half", "tries": 20, "right": 19}]
    found = shown(reach.verdicts, given(tmp_path, "verdicts", *cases))
    assert found == [("20 of 20", True), ("19 of 20", False)]
    change = {"case": "open → half", "tries": 20, "right": 20}
    assert shown(reach.changes, given(tmp_path, "changes", change)) == [("20 of 20", True)]


def test_votes_may_neither_be_lost_nor_take_much_longer(tmp_path: Path) -> None:
    good = given(tmp_path, "votes", VOTES, VOTES_DIALABLE)
    assert shown(reach.voters, good) == [("0 lost in 20 commits of 4 voters", True), (0.94, True)]
    bad = given(tmp_path, "votes", VOTES | {"lost_messages": 1, "median_s": 1.6}, VOTES_DIALABLE)
    assert shown(reach.voters, bad) == [("1 lost in 20 commits of 4 voters", False), (1.61, False)]


def test_decisions_without_two_voters_behind_nats_do_not_count(tmp_path: Path) -> None:
    few = given(tmp_path, "votes", VOTES | {"voters": 2}, VOTES_DIALABLE)
    assert shown(reach.voters, few)[0] == ("0 lost in 20 commits of 2 voters", False)


@pytest.mark.parametrize(("share", "ok"), [(0.8, True), (0.79, False)])
def test_newcomer_has_to_use_its_line(tmp_path: Path, share: float, ok: bool) -> None:
    found = given(tmp_path, "joining", {"megabytes": 50, "share_of_line": share})
    assert shown(reach.joining, found) == [(share, ok)]


def test_doctor_must_be_fast_and_find_no_fault(tmp_path: Path) -> None:
    assert shown(reach.doctor, given(tmp_path, "doctor", DOCTOR)) == [("12.8 s, 0 faults", True)]
    slow = given(tmp_path, "doctor", DOCTOR | {"seconds": 20.1})
    assert shown(reach.doctor, slow) == [("20.1 s, 0 faults", False)]
    faults: dict[str, object] = {"findings": [FINDING | {"level": "fault"}], "status": 4}
    (line,) = reach.doctor(given(tmp_path, "doctor", DOCTOR | faults))
    assert (line["ok"], line["faults"]) == (False, ["clock: the monotonic clock is steady"])
    assert shown(reach.doctor, given(tmp_path, "doctor")) == [("no result", False)]


def test_each_row_of_the_table_is_measured_and_says_how_long_it_takes() -> None:
    assert [each.name for each in reach.MEASURES] == [
        "punching",
        "relayed pair cone:sym",
        "relayed pair sym:sym",
        "six nodes",
        "symmetric",
        "relay cost",
        "relay cost with network cards",
        "relay cost emulated",
        "verdicts",
        "changes",
        "voters",
        "joining",
        "organisers",
        "refused",
        "third-party",
        "punch-targets",
        "bad-relays",
        "doctor-faults",
        "doctor-output",
        "campaign delegated",
        "doctor healthy",
    ]
    assert all(each.takes and each.takes_quick for each in reach.MEASURES)


class TwoPass(Setting):
    """A setting in which each run of pytest says that two tests passed."""

    def python(self, name: str, *words: str) -> Done:
        return Done(0, "2 passed in 0.1s", 0.1)


def test_claim_with_too_few_cases_is_not_accepted(tmp_path: Path) -> None:
    few = Claim("few", "few cases", "many", ("tests/acceptance/test_reach.py",), cases_min=3)
    assert shown(partial(reach.claim, few), TwoPass(tmp_path)) == [("2 of at least 3 cases", False)]
    enough = replace(few, cases_min=2)
    assert shown(partial(reach.claim, enough), TwoPass(tmp_path)) == [("many", True)]


MEASURED: dict[str, Take] = {
    "punching": reach.punching,
    "connecting": partial(reach.relayed_pair, "cone:sym"),
    "relaying-emulated": partial(reach.relay_cost, "sym:sym"),
    "exchanges": reach.six_nodes,
    "verdicts": reach.verdicts,
    "changes": reach.changes,
    "votes": reach.voters,
    "joining": reach.joining,
}


@pytest.mark.parametrize("name", MEASURED)
def test_machine_without_the_emulator_says_what_it_lacks(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(UNABLE)
    why = "not measured: it makes network namespaces, so it needs root"
    found = shown(MEASURED[name], Setting(tmp_path, given={name: path}))
    assert set(found) == {(why, False)}
