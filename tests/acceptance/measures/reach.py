"""The measures for `scripts/accept reach`. They show whether nodes behind NATs connect, vote and
join, and whether a run outlives its organiser. `scripts/accept reach --list` shows how long each
measure takes.

Most of them run a program of tests/wan/harness and read the lines of JSON that it prints. Instead,
`--read` can name a file with such lines: `punching`, `connecting`, `exchanges`, `relaying`,
`relaying-cards`, `relaying-emulated`, `verdicts`, `changes`, `votes`, `joining` or `doctor`. A
program that needs the emulator says why it cannot run on this machine; its lines are then not ok,
and say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tests.acceptance.measures import programs, siege
from tests.acceptance.measures.programs import Printed, number
from tests.acceptance.measures.pytest_runs import claim
from tests.acceptance.measures.reach_claims import CLAIMS
from tests.acceptance.measures.setting import Line, Measure, Setting, line, objects_in
from tests.wan.harness.punching import PAIRS

PUNCHED_SHARE_MIN = 39 / 40
TRIES, TRIES_QUICK = 40, 4
PAIRS_QUICK = ("cone:cone", "fw:fw")

RELAYED_PAIRS = ("cone:sym", "sym:sym")
RELAYINGS = {"": "relaying", "veth": "relaying-cards", "sym:sym": "relaying-emulated"}
"""The names of earlier results about the cost of a relay, by its network."""
RELAYED_TRIES, RELAYED_TRIES_QUICK = 20, 2
CONNECTING_S_MAX = 4.0

STEPS, STEPS_QUICK = 10, 3
EXCHANGE_RATIO_MAX = 1.2
COMMIT_RATIO_MAX = 1.5

COMMITS, COMMITS_QUICK = 20, 3
VOTERS_MIN = 3
"""With three voters, of which one can be dialled, a quorum needs one behind a NAT, and two are."""

VERDICTS, VERDICTS_QUICK = 20, 1
CHANGES, CHANGES_QUICK = 5, 1
"""Rounds of changes. In each round, four nodes go through four changes."""

KINDS_QUICK = ("open", "cone", "sym")
MEGABYTES_QUICK = 200
LINE_SHARE_MIN = 0.8
DOCTOR_S_MAX = 20.0

_UNABLE = re.compile(r"the emulator cannot run here: (.*)")
_UNKNOWN = re.compile(r"invalid choice: '([^']*)'")


def printed(setting: Setting, read: str, log: str, program: str, *words: str) -> Printed:
    """Run a program of tests/wan/harness, or read the earlier result `read`."""
    found = programs.printed(setting, read, log, f"tests.wan.harness.{program}", *words)
    if unable := _UNABLE.search(found.evidence):
        return replace(found, why=unable[1])
    if unknown := _UNKNOWN.search(found.evidence):
        why = f"tests/wan/harness/{program}.py does not know {unknown[1]}"
        return replace(found, why=why)
    return found


def longest(found: dict[str, object], name: str) -> float:
    """Return the second of a median and a maximum in seconds."""
    both = found.get(name)
    return float(both[1]) if isinstance(both, list) and len(both) == 2 else float("nan")


# ── connections ──────────────────────────────────────────────────────────────────────────────────


def punching(setting: Setting) -> Iterator[Line]:
    tries = TRIES_QUICK if setting.quick else TRIES
    pairs = PAIRS_QUICK if setting.quick else PAIRS
    found = printed(setting, "punching", "punching", "punching", "--tries", str(tries), *pairs)
    by_pair = {each.get("pair"): each for each in found.objects}
    required = "at least 39 of 40 within 2 s"
    for pair in pairs:
        name = f"punched edges with 4 streams: {pair}"
        if each := by_pair.get(pair):
            in_time, of = number(each, "in_time"), number(each, "tries")
            ok = of >= tries and in_time >= PUNCHED_SHARE_MIN * of
            yield line(name, f"{in_time:.0f} of {of:.0f}", required, ok, found=each)
        else:
            yield found.missing(name, required)


def relayed_pair(nat: str, setting: Setting) -> Iterator[Line]:
    """Measure the data plane only: both ends know at once that they need a relay."""
    tries = RELAYED_TRIES_QUICK if setting.quick else RELAYED_TRIES
    words = ("--nat", nat, "--tries", str(tries))
    log = f"connecting-{nat.replace(':', '-')}"
    found = printed(setting, "connecting", log, "relaying", *words)
    name = f"relayed edges with 4 streams: {nat}"
    mine = [each for each in found.objects if each.get("nat") == nat]
    for each in mine:
        yield each | {"measure": name}
    if not mine:
        yield found.missing(name, f"all within {CONNECTING_S_MAX:.0f} s")


def exchanges(setting: Setting, network: str) -> tuple[dict[str, object] | None, Printed]:
    """Return what was measured in a network of `exchanges`, and all that the program printed."""
    words = ("--commits", str(_steps(setting)), "--network", network)
    found = printed(setting, "exchanges", f"exchanges-{network}", "exchanges", *words)
    return next((it for it in found.objects if it.get("network") == network), None), found


def _steps(setting: Setting) -> int:
    return STEPS_QUICK if setting.quick else STEPS


def six_nodes(setting: Setting) -> Iterator[Line]:
    """Six nodes of which one can be dialled, compared with six that can all be dialled."""
    name = "six nodes, one of them dialable"
    behind, printed_behind = exchanges(setting, "six-nats")
    if behind is None:
        yield printed_behind.missing(name, "no attempt lost to connecting")
        return
    lost, steps = behind["attempts_lost_to_connecting"], number(behind, "commits")
    ok = lost == 0 and steps >= _steps(setting)
    required = "no attempt lost to connecting"
    value = f"{lost} lost in {steps:.0f} outer steps"
    yield line(f"{name}: lost attempts", value, required, ok, found=behind)
    yield connecting(f"{name}: longest connecting", behind)
    required = f"at most {EXCHANGE_RATIO_MAX} times that of six dialable nodes"
    dialable, printed_dialable = exchanges(setting, "six-dialable")
    if dialable is None:
        yield printed_dialable.missing(f"{name}: exchange", required)
        return
    ratios = {at: _ratio(behind, dialable, at) for at in ("exchange_s", "transfer_s")}
    # Connecting takes a time of its own, so the ratio depends on the size of the model.
    later_s = round(_median(behind, "exchange_s") - _median(dialable, "exchange_s"), 3)
    detail = {"transfer_ratio": ratios["transfer_s"], "longer_by_s": later_s, "found": dialable}
    ok = ratios["exchange_s"] <= EXCHANGE_RATIO_MAX
    yield line(f"{name}: median exchange", ratios["exchange_s"], required, ok, **detail)


def connecting(name: str, found: dict[str, object]) -> Line:
    """Return a line about the slowest attempt: its pairs punch, or find out that they need a relay
    and use it."""
    seconds = longest(found, "connecting_s")
    required = f"at most {CONNECTING_S_MAX:.0f} s"
    return line(name, seconds, required, seconds <= CONNECTING_S_MAX, relayed=found.get("relayed"))


def _median(found: dict[str, object], name: str) -> float:
    both = found.get(name)
    return float(both[0]) if isinstance(both, list) and both else float("nan")


def _ratio(one: dict[str, object], other: dict[str, object], name: str) -> float:
    return round(_median(one, name) / _median(other, name), 2)


def symmetric(setting: Setting) -> Iterator[Line]:
    name = "six nodes, five of them behind symmetric NATs"
    found, all_printed = exchanges(setting, "six-symmetric")
    if found is None:
        yield all_printed.missing(name, "the outer steps complete")
        return
    steps = number(found, "commits")
    ok = steps >= _steps(setting)
    yield line(name, f"{steps:.0f} outer steps", "the outer steps complete", ok, found=found)
    yield connecting(f"{name}: longest connecting", found)


def relay_cost(nat: str, setting: Setting) -> Iterator[Line]:
    """Measure a relay on loopback, between network namespaces (`veth`), or in the emulator between
    these two NATs."""
    read, name = RELAYINGS[nat], f"relay, {nat}" if nat else "relay"
    words = ["--nat", nat] if nat else []
    if nat or setting.quick:
        words += ["--megabytes", str(MEGABYTES_QUICK), "--limit-up", "4e6"]
    found = printed(setting, read, read, "relaying", *words)
    for each in found.objects:
        yield each | {"measure": f"{name}: {each['measure']}"}
    if len(found.objects) < 3:
        required = "0.5 CPU s per GB; within 10 % of its limits"
        yield found.missing(f"{name}: CPU and limits", required)


# ── verdicts, votes, joining ─────────────────────────────────────────────────────────────────────


def verdicts(setting: Setting) -> Iterator[Line]:
    tries = VERDICTS_QUICK if setting.quick else VERDICTS
    kinds = KINDS_QUICK if setting.quick else ()
    words = ("--tries", str(tries), "--changes", "0", *kinds)
    found = printed(setting, "verdicts", "verdicts", "verdicts", *words)
    yield from judged("verdict", "right within 60 s in all of 20 tries", tries, found)


def changes(setting: Setting) -> Iterator[Line]:
    rounds = CHANGES_QUICK if setting.quick else CHANGES
    words = ("--tries", "0", "--changes", str(rounds))
    found = printed(setting, "changes", "changes", "verdicts", *words)
    yield from judged("changed verdict", "right within 2 min of a change", rounds, found)


def judged(name: str, required: str, tries_min: int, found: Printed) -> Iterator[Line]:
    for each in found.objects:
        right, tries = number(each, "right"), number(each, "tries")
        ok = right == tries >= tries_min
        yield line(
            f"{name}: {each['case']}", f"{right:.0f} of {tries:.0f}", required, ok, found=each
        )
    if not found.objects:
        yield found.missing(name, required)


def voters(setting: Setting) -> Iterator[Line]:
    """Four voters, three of them behind NATs, compared with four voters that can be dialled."""
    commits = COMMITS_QUICK if setting.quick else COMMITS
    found = printed(setting, "votes", "votes", "votes", "--commits", str(commits))
    networks = {str(each.get("network")): each for each in found.objects}
    name, required = "voters behind NATs", f"no message lost, and at least {VOTERS_MIN} voters"
    if "nats" not in networks or "dialable" not in networks:
        yield found.missing(name, required)
        return
    behind, dialable = networks["nats"], networks["dialable"]
    lost, decided = behind["lost_messages"], number(behind, "commits")
    # Voters that start late lose their votes. Then no decision needs two voters behind NATs.
    voting = number(behind, "voters")
    value = f"{lost} lost in {decided:.0f} commits of {voting:.0f} voters"
    ok = lost == 0 and decided >= commits and voting >= VOTERS_MIN
    yield line(f"{name}: messages", value, required, ok, found=behind)
    ratio = round(number(behind, "median_s") / number(dialable, "median_s"), 2)
    required = f"at most {COMMIT_RATIO_MAX} times that of dialable voters"
    yield line(f"{name}: commit time", ratio, required, ratio <= COMMIT_RATIO_MAX, found=dialable)


def joining(setting: Setting) -> Iterator[Line]:
    words = ("--megabytes", "10") if setting.quick else ()
    found = printed(setting, "joining", "joining", "joining", *words)
    name, required = "newcomer and all holders behind cone NATs", "at least 0.8 of its line"
    if not found.objects:
        yield found.missing(name, required)
    for each in found.objects:
        share = number(each, "share_of_line")
        yield line(name, share, required, share >= LINE_SHARE_MIN, found=each)


# ── tests and simulations ────────────────────────────────────────────────────────────────────────

DELEGATED = siege.Campaign(
    "delegated",
    "organisers are lost, and delegates admit and vote",
    ("--profile", "delegated", "--peers", "3", "--steps", "16"),
)


def doctor(setting: Setting) -> Iterator[Line]:
    """Run the doctor with a home that does not exist. This machine must be healthy."""
    text = setting.earlier("doctor")
    home = str(setting.folder / "no-home")
    if text is None:
        words = ("-m", "p2ptrain.cli", "doctor", "--json", "--home", home)
        text = setting.python("doctor", *words).text
    name, required = "doctor on a healthy machine", f"at most {DOCTOR_S_MAX:.0f} s, and no fault"
    found = next((each for each in objects_in(text) if "findings" in each), None)
    if found is None:
        yield line(name, "no result", required, False, evidence=text[-2000:])
        return
    findings = json.loads(json.dumps(found["findings"]))
    faults = [f"{it['name']}: {it['said']}" for it in findings if it["level"] == "fault"]
    seconds = round(number(found, "seconds"), 1)
    ok = not faults and found["status"] == 0 and seconds <= DOCTOR_S_MAX
    value = f"{seconds} s, {len(faults)} faults"
    yield line(name, value, required, ok, faults=faults, checks=len(findings))


MEASURES = (
    Measure("punching", punching, "5 min", "20 s"),
    *(
        Measure(f"relayed pair {nat}", partial(relayed_pair, nat), "2 min", "15 s")
        for nat in RELAYED_PAIRS
    ),
    Measure("six nodes", six_nodes, "2 min", "1 min"),
    Measure("symmetric", symmetric, "1 min", "1 min"),
    Measure("relay cost", partial(relay_cost, ""), "1 min", "30 s"),
    Measure("relay cost with network cards", partial(relay_cost, "veth"), "1 min", "1 min"),
    Measure("relay cost emulated", partial(relay_cost, "sym:sym"), "1 min", "1 min"),
    Measure("verdicts", verdicts, "45 min", "1 min"),
    Measure("changes", changes, "30 min", "6 min"),
    Measure("voters", voters, "2 min", "30 s"),
    Measure("joining", joining, "2 min", "1 min"),
    *(Measure(each.log, partial(claim, each), each.takes, each.takes) for each in CLAIMS),
    Measure(f"campaign {DELEGATED.name}", partial(siege.campaign, DELEGATED), "hours", "1 min"),
    Measure("doctor healthy", doctor, "20 s", "20 s"),
)
