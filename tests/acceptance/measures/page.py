"""The measures for `scripts/accept page`. They show what the page costs, how soon it shows a
commit, and that its server is bounded and refuses other web pages.

`--read costs=FILE` names a file with the line that tests/web/harness/page_costs.py prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tests.acceptance.measures.pytest_runs import tested
from tests.acceptance.measures.setting import Line, Measure, Setting, line, objects_in

SECONDS, SECONDS_QUICK = 300, 60
PEERS_MIN, STEPS_MIN = 24, 600
LATE_S_MAX = 1.0
BYTES_PER_HOUR_MAX = 2_000_000
NODE_CPU_SHARE_MAX = 0.005
"""Maximum processor time that a reader of the page costs the node, as a share of one core."""


def costs(setting: Setting) -> Iterator[Line]:
    """Measure a page with one reader, of a run with 24 peers and 600 outer steps."""
    text, end = setting.earlier("costs"), "the given result does not contain it"
    if text is None:
        seconds = str(SECONDS_QUICK if setting.quick else SECONDS)
        done = setting.python("costs", "-m", "tests.web.harness.page_costs", "--seconds", seconds)
        text, end = done.text, f"page_costs ended with status {done.code}: {done.tail}"
    found = next((each for each in objects_in(text) if "node_cpu_share" in each), None)
    measures = (
        ("update after a commit, s", f"at most {LATE_S_MAX:g}", _longest_late, LATE_S_MAX),
        ("bytes per hour", f"at most {BYTES_PER_HOUR_MAX}", _bytes_per_hour, BYTES_PER_HOUR_MAX),
        ("node's CPU for it, share of a core", "at most 0.005", _node_cpu, NODE_CPU_SHARE_MAX),
    )
    for name, required, value_in, most in measures:
        if found is None:
            yield line(name, f"not measured: {end}", required, False)
            continue
        value, large = value_in(found), _number(found, "peers") >= PEERS_MIN
        enough = large and _number(found, "steps") >= STEPS_MIN
        yield line(name, value, required, enough and value <= most, found=found)


def _number(found: dict[str, object], name: str) -> float:
    return float(str(found.get(name, "nan")))


def _longest_late(found: dict[str, object]) -> float:
    """Return the longest delay; infinity if the reader missed a commit."""
    late = json.loads(json.dumps(found.get("late_s")))
    missed = _number(found, "seen") < _number(found, "commits") - 1
    return float("inf") if missed or not isinstance(late, list) else float(late[1])


def _bytes_per_hour(found: dict[str, object]) -> float:
    return _number(found, "bytes_per_hour")


def _node_cpu(found: dict[str, object]) -> float:
    return _number(found, "node_cpu_share")


@dataclass(frozen=True, slots=True)
class Claim:
    log: str
    name: str
    required: str
    tests: tuple[str, ...]


_SERVED = "tests/web/test_page_is_served.py"
_STREAM = "tests/web/test_page_stream.py"
_KEPT = "tests/node/page/test_keep_page.py"

CLAIMS = (
    Claim(
        "rebinding",
        "DNS rebinding",
        "refused",
        (f"{_SERVED}::test_dns_rebinding_is_refused", "tests/web/test_page_bounds.py"),
    ),
    Claim(
        "cross-origin",
        "cross-origin POST",
        "refused",
        (f"{_SERVED}::test_other_web_pages_can_neither_read_nor_act",),
    ),
    Claim(
        "clients",
        "500 SSE clients",
        "bounded",
        (
            f"{_STREAM}::test_readers_above_the_limit_are_refused",
            f"{_STREAM}::test_connections_above_the_limit_are_closed",
        ),
    ),
    Claim(
        "slow-readers",
        "slow readers",
        "bounded",
        (
            f"{_STREAM}::test_slow_reader_is_disconnected",
            f"{_STREAM}::test_client_that_does_not_read_is_dropped",
        ),
    ),
    Claim(
        "killed",
        "web process killed",
        "restarted",
        (f"{_KEPT}::test_killed_page_is_started_again_at_its_port",),
    ),
    Claim(
        "hostile-texts",
        "hostile names, notes and samples on the page's API",
        "inert and bounded",
        ("tests/web/test_page_bounds.py::test_hostile_texts_of_the_node_are_bounded",),
    ),
)


def claim(each: Claim, setting: Setting) -> Iterator[Line]:
    yield tested(setting, each.log, each.name, each.required, each.tests)


MEASURES = (
    Measure("costs", costs),
    *(Measure(each.log, partial(claim, each)) for each in CLAIMS),
)
