"""The results as JSON lines and as a readable table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.chaos.harness.points import Point, Role
from tests.chaos.harness.scenarios import Told
from tests.chaos.harness.strike import Account, Case, Fault

DETECTION_S = 8.0
"""Seconds until a peer counts as lost: four missed heartbeats, one every two seconds
(`ledger.failure_detector`).
"""

KILL_TO_COMMIT_S = 2.0
"""Limit in seconds from a kill to the next commit. The time of one reduce is added to it. A kill
resets connections, so the other nodes notice it before the failure detector does.
"""

SLOWNESS_MAX = 1.5
"""Limit for a frozen process or a cut link, as a multiple of the detection time."""


TIMES = ("to_commit_s", "red_s", "back_s", "worst_gap_s", "reduce_s")
"""The times in a line, in the order of an Account's fields."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value v such that at least this fraction of all values is at most v."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -int(-share * len(ranked) // 1) - 1))]


def limit_s(fault: Fault, reduce_s: float) -> float:
    """Return the limit on the p99 of the time from this fault to the next commit."""
    return KILL_TO_COMMIT_S + reduce_s if fault is Fault.KILL else SLOWNESS_MAX * DETECTION_S


def line_of(account: Account) -> dict[str, Any]:
    """Return one case as a JSON object."""
    case = account.case
    return {
        "case": str(case),
        "point": str(case.point),
        "fault": str(case.fault),
        "role": str(case.role),
        "struck": account.struck,
        **{name: _rounded(getattr(account, name)) for name in TIMES},
        "troubles": account.troubles,
    }


def account_of(line: dict[str, Any]) -> Account:
    """Return the account from which `line_of` made this line."""
    case = Case(Point.parse(line["point"]), Fault(line["fault"]), Role(line["role"]))
    times = {name: line[name] for name in TIMES}
    return Account(case, line["struck"], **times, troubles=line["troubles"])


def line_of_scenario(told: Told) -> dict[str, Any]:
    return {
        "case": told.name,
        "scenario": told.name,
        "seconds": _rounded(told.seconds),
        "troubles": list(told.troubles),
    }


def in_words(line: dict[str, Any]) -> str:
    """Return a readable line of text about a case."""
    times = [f"{name} {line[name]}" for name in (*TIMES, "seconds") if line.get(name) is not None]
    wrong = [f"WRONG: {each}" for each in line["troubles"]]
    return f"{line['case']}: " + "; ".join([*times, *wrong])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def measures(accounts: Sequence[Account]) -> Iterator[dict[str, Any]]:
    """Yield the p50 and p99 of the times by fault and role, with the required limit."""
    for fault in Fault:
        reduces = [a.reduce_s for a in accounts if a.case.fault is fault and a.reduce_s is not None]
        for role in Role:
            mine = [a for a in accounts if (a.case.fault, a.case.role) == (fault, role)]
            for name, what in (
                ("to_commit_s", "from the fault to the next commit"),
                ("worst_gap_s", "longest time without a commit until all are back"),
                ("back_s", "from the fault's end until all five commit together"),
            ):
                values = [v for a in mine if (v := getattr(a, name)) is not None]
                if not values:
                    continue
                against = ""
                if name == "to_commit_s":
                    against = f"p99 ≤ {limit_s(fault, max(reduces)):.2f} s"
                yield from _pair(f"{fault} of {role}: {what}", values, against)


def scenario_measures(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.get("seconds") is not None:
            yield {
                "measure": f"{line['scenario']}: from the restart to the next commit",
                "value": line["seconds"],
                "unit": "s",
                "against": "it resumes by itself",
            }


def _pair(what: str, values: Sequence[float], against: str) -> Iterator[dict[str, Any]]:
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        yield {
            "measure": f"{what}, {name} of {len(values)}",
            "value": round(percentile(values, share), 2),
            "unit": "s",
            "against": against if name == "p99" else "",
        }


def misses(accounts: Sequence[Account]) -> list[str]:
    """Return the figures that exceed their limit, in words."""
    wrong = []
    for fault in Fault:
        mine = [a for a in accounts if a.case.fault is fault and a.to_commit_s is not None]
        if mine:
            value = percentile([a.to_commit_s or 0.0 for a in mine], 0.99)
            limit = limit_s(fault, max(a.reduce_s or 0.0 for a in mine))
            if value > limit:
                wrong.append(
                    f"{fault}: the p99 of the time to the next commit is {value:.2f} s; "
                    f"the limit is {limit:.2f} s"
                )
    return wrong


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return the measures as a readable table."""
    return "\n".join(map(_row, lines))


def _row(line: dict[str, Any]) -> str:
    against = f"   ({line['against']})" if line["against"] else ""
    return f"{line['value']:>8.2f} {line['unit']}  {line['measure']}{against}"
