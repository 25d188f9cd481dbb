"""The measures for `scripts/accept page`. They show what the page costs, how soon it shows a
commit, that its server is bounded and refuses other web pages, and that pauses free the device.

`--read NAME=FILE` uses the lines of an earlier run: `costs` of tests/web/harness/page_costs.py,
`browser` of scripts/check_page, and `waterfall`, `pausing` and `visited` of the programs in
tests/acceptance/harness.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from tests.acceptance.measures import commands
from tests.acceptance.measures.page_claims import CLAIMS, FAULTS
from tests.acceptance.measures.programs import number, printed
from tests.acceptance.measures.pytest_runs import claim
from tests.acceptance.measures.setting import Line, Measure, Setting, line, objects_in

HARNESS = "tests.acceptance.harness"
SECONDS, SECONDS_QUICK = 300, 60
PEERS_MIN, STEPS_MIN = 24, 600
LATE_S_MAX = 1.0
BYTES_PER_HOUR_MAX = 2_000_000
NODE_CPU_SHARE_MAX = 0.005
"""Maximum processor time that a reader of the page costs the node, as a share of one core."""

WATERFALL_MAX = 0.02
PAUSES, PAUSES_QUICK = 3, 1
ENDS = 2.0
"""Times that an idle process with torch takes to end on this machine, which the trainer's processes
may take once the inner step is over: they also close a connection and shared memory."""

CLIENTS, SERVED_MAX, SERVED_MIN = 500, 32, 30
"""Numbers of clients: all, and those that are served. On a busy machine, a few served clients read
so slowly that they are dropped, and a moment passes until others take their places."""

RATE_MIN, RATE_ERROR_MAX = 0.99, 0.005
"""Minimum rate of inner steps with the clients, as a share of that without, and the maximum
standard error with which it must be known. On a machine that does other work, the error is larger.
"""

PAIRS, PAIRS_QUICK = 16, 4


def costs(setting: Setting) -> Iterator[Line]:
    """Measure a page with one reader, of a run with 24 peers and 600 outer steps."""
    seconds = str(SECONDS_QUICK if setting.quick else SECONDS)
    program = "tests.web.harness.page_costs"
    told = printed(setting, "costs", "costs", program, "--seconds", seconds)
    found = next((each for each in told.objects if "node_cpu_share" in each), None)
    measures = (
        ("update after a commit, s", f"at most {LATE_S_MAX:g}", _longest_late, LATE_S_MAX),
        ("bytes per hour", f"at most {BYTES_PER_HOUR_MAX}", _bytes_per_hour, BYTES_PER_HOUR_MAX),
        ("node's CPU for it, share of a core", "at most 0.005", _node_cpu, NODE_CPU_SHARE_MAX),
    )
    for name, required, value_in, most in measures:
        if found is None:
            yield told.missing(name, required)
            continue
        value, large = value_in(found), number(found, "peers") >= PEERS_MIN
        enough = large and number(found, "steps") >= STEPS_MIN
        yield line(name, value, required, enough and value <= most, found=found)


def _longest_late(found: dict[str, object]) -> float:
    """Return the longest delay; infinity if the reader missed a commit."""
    late = json.loads(json.dumps(found.get("late_s")))
    missed = number(found, "seen") < number(found, "commits") - 1
    return float("inf") if missed or not isinstance(late, list) else float(late[1])


def _bytes_per_hour(found: dict[str, object]) -> float:
    return number(found, "bytes_per_hour")


def _node_cpu(found: dict[str, object]) -> float:
    return number(found, "node_cpu_share")


def browser(setting: Setting) -> Iterator[Line]:
    """Check the page in Chromium: first paint, accessibility, keyboard, 360 px, hostile texts."""
    text, end = setting.earlier("browser"), "the given result does not contain it"
    if text is None:
        done = setting.run("browser", "scripts/check_page")
        text, end = done.text, done.tail.strip()
    found = [each for each in objects_in(text) if "measure" in each]
    if not found:
        yield line("page in a browser", f"not measured: {end}", "all checks pass", False)
    yield from found


def waterfall(setting: Setting) -> Iterator[Line]:
    """Compare the sums of a run's waterfall with what the journals of all its nodes say."""
    told = printed(setting, "waterfall", "waterfall", f"{HARNESS}.waterfall")
    name, required = "waterfall against the nodes' journals: largest difference", "at most 0.02"
    if not told.objects:
        yield told.missing(name, required)
    for found in told.objects:
        value = number(found, "difference")
        yield line(name, value, required, value <= WATERFALL_MAX, found=found)


def pausing(setting: Setting) -> Iterator[Line]:
    """Pause and resume a member with a real trainer, by its commands."""
    pauses = PAUSES_QUICK if setting.quick else PAUSES
    told = printed(setting, "pausing", "pausing", f"{HARNESS}.pausing", "--pauses", str(pauses))
    found = told.objects
    freed = "pause: seconds until the device is free"
    within = "at most the longest inner step and twice the end of an idle process with torch"
    again = "resume: outer steps until the member contributes, once its trainer is up"
    if len(found) < pauses:
        yield told.missing(freed, within)
        yield told.missing(again, "at most 1")
        return
    in_time = all(
        number(each, "freed_s")
        <= number(each, "inner_step_s_max") + ENDS * number(each, "end_of_process_s")
        for each in found
    )
    yield line(freed, max(number(each, "freed_s") for each in found), within, in_time, found=found)
    waits = [
        number(each, "contributed_to_outer_step") - number(each, "outer_step_when_trainer_was_up")
        for each in found
    ]
    paused = not any(each["took_part_while_paused"] for each in found)
    yield line(again, max(waits), "at most 1", max(waits) <= 1 and paused)


def visited(setting: Setting) -> Iterator[Line]:
    """Let 500 clients ask for the stream of a page whose node trains."""
    pairs = str(PAIRS_QUICK if setting.quick else PAIRS)
    told = printed(setting, "visited", "visited", f"{HARNESS}.visited_training", "--pairs", pairs)
    name = "training rate with 500 SSE clients, of that without"
    required = f"at least {RATE_MIN:g}, known to {RATE_ERROR_MAX:g}"
    if not told.objects:
        yield told.missing(name, required)
    for found in told.objects:
        ratio, error = number(found, "ratio"), number(found, "ratio_error")
        bounded = number(found, "served_max") == SERVED_MAX
        enough = number(found, "served_min") >= SERVED_MIN and number(found, "clients") >= CLIENTS
        ok = bounded and enough and ratio >= RATE_MIN and error <= RATE_ERROR_MAX
        yield line(name, ratio, required, ok, error=error, found=found)


MEASURES = (
    *(Measure(f"fault {each.log}", partial(claim, each), each.takes) for each in FAULTS),
    Measure("costs", costs, "11 min", "3 min"),
    Measure("browser", browser, "3 min"),
    *(Measure(each.log, partial(claim, each), each.takes) for each in CLAIMS),
    Measure("visited", visited, "11 min", "3 min"),
    Measure("waterfall", waterfall, "2 min"),
    Measure("pausing", pausing, "5 min", "3 min"),
    Measure("commands", commands.cpu_times, "1 min"),
)
