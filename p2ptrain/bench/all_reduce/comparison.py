"""`p2ptrain bench allreduce`: average one vector among processes, with our code and other
libraries.

All contenders take turns within one run, so that a busy machine affects all of them equally. The
time of a repeat is that of its slowest process; the median repeat counts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product

from p2ptrain import kernels
from p2ptrain.bench.all_reduce.averaging import AverageMeasured, AverageSetting
from p2ptrain.bench.all_reduce.beside import ContenderRun, slowest_median
from p2ptrain.bench.lines import FigureLine, machine
from p2ptrain.bench.processes import Host, together
from p2ptrain.ring import SCHEDULES
from p2ptrain.ring.plan import STREAMS_MAX


@dataclass(frozen=True, slots=True)
class AllreduceOutcome:
    """The measurements of all processes of one setting, combined."""

    seconds: float
    cpu_s: float
    wire_ratio: float
    """Bytes sent, divided by the minimum for an 8-bit codec: 2 (N − 1) ÷ N bytes per element."""


@dataclass(frozen=True, slots=True)
class AllreduceReport:
    """The figures. `missing` gives the reason for each contender that could not be measured."""

    lines: tuple[FigureLine, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def run_at(setting: AverageSetting, hosts: Sequence[Host]) -> AllreduceOutcome:
    """Run all peers of `setting`, each on its host."""
    return together_of(setting, measured_here(setting, hosts))


def measured_here(setting: AverageSetting, hosts: Sequence[Host] = ()) -> list[AverageMeasured]:
    """Run all peers in separate processes, by default on this machine, and return the measurements
    of each."""
    places = list(hosts or [Host()] * setting.peers)[: setting.peers]
    module = "p2ptrain.bench.all_reduce.averaging"
    program = [sys.executable, "-m", module, json.dumps(asdict(setting))]
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as folder:
        commands = [
            place.command([*program, str(me), place.address, folder])
            for me, place in enumerate(places)
        ]
        return [AverageMeasured(**json.loads(answer)) for answer in together(commands)]


def together_of(setting: AverageSetting, measured: Sequence[AverageMeasured]) -> AllreduceOutcome:
    """Combine the measurements of all peers. Raises AssertionError if their means differ."""
    digests = {each.digest for each in measured}
    if len(digests) != 1:
        raise AssertionError(f"the peers hold {len(digests)} different means")
    slowest_s = slowest_median([each.seconds for each in measured])
    cpu_s = [sum(times) for times in zip(*(each.cpu_s for each in measured), strict=True)]
    ideal_bytes = 2 * (setting.peers - 1) / setting.peers * setting.elements
    most_bytes = max(each.sent_bytes for each in measured)
    wire_ratio = most_bytes / max(1.0, ideal_bytes)
    return AllreduceOutcome(slowest_s, statistics.median(cpu_s), wire_ratio)


def measure(
    settings: Sequence[AverageSetting],
    rounds: int,
    *,
    against: Sequence[str] = ("gloo",),
    hosts: Sequence[Host] = (),
    run: Callable[[AverageSetting, Sequence[Host]], AllreduceOutcome] = run_at,
    contenders: Callable[[Sequence[str]], ContenderRun] = ContenderRun,
) -> AllreduceReport:
    """Measure every setting once in each of `rounds` rounds, alternating with the other libraries.
    `run` measures our setting, and `contenders` prepares the others.

    Raises ValueError: there are too few hosts, or a contender's name is unknown.
    """
    peers_max = max((setting.peers for setting in settings), default=0)
    if hosts and len(hosts) < peers_max:
        raise ValueError(f"{peers_max} peers need {peers_max} addresses; you gave {len(hosts)}")
    places = list(hosts) or [Host()] * peers_max
    before = os.getloadavg()[0]
    ours: dict[AverageSetting, list[AllreduceOutcome]] = {setting: [] for setting in settings}
    theirs: dict[tuple[str, int, int], list[float]] = {}
    with contenders(against) as beside:
        for turn in range(rounds):
            for setting in settings:
                ours[setting].append(run(setting, places))
                for name in tuple(beside.contenders):
                    # Measure a contender once per round, after the first of our settings with this
                    # vector.
                    times = theirs.setdefault((name, setting.peers, setting.elements), [])
                    if len(times) > turn:
                        continue
                    at = places[: setting.peers]
                    seconds = beside.seconds(name, at, setting.elements, setting.repeats)
                    times += [] if seconds is None else [seconds]
    return AllreduceReport((*_lines(ours, theirs), *machine(before)), beside.missing)


Theirs = Mapping[tuple[str, int, int], Sequence[float]]
"""Seconds of each round, by name, peers and elements."""


def _lines(
    ours: Mapping[AverageSetting, Sequence[AllreduceOutcome]], theirs: Theirs
) -> Iterator[FigureLine]:
    beside = {key: statistics.median(seconds) for key, seconds in theirs.items() if seconds}
    for (name, peers, elements), seconds in beside.items():
        every = theirs[name, peers, elements]
        what = f"{name}, {peers} peers, {elements:,} elements"
        yield FigureLine(what, seconds, "s", details=point(name, peers, elements, every))
    for setting, outcomes in ours.items():
        name = name_of(setting)
        times = [each.seconds for each in outcomes]
        seconds = statistics.median(times)
        what = f"{setting.schedule} {setting.codec} {_secrecy(setting)}"
        details = point(what, setting.peers, setting.elements, times)
        yield FigureLine(name, seconds, "s", details=details)
        yield FigureLine(name, statistics.median(each.cpu_s for each in outcomes), "CPU s")
        yield FigureLine(name, outcomes[0].wire_ratio, "×", "bytes of an ideal 8-bit all-reduce")
        for (other, peers, elements), theirs_s in beside.items():
            if (peers, elements) == (setting.peers, setting.elements):
                yield FigureLine(name, theirs_s / seconds, "× as fast as", other)
        one = ours.get(replace(setting, streams=1), ())
        if one and setting.streams > 1:
            alone_s = statistics.median(each.seconds for each in one)
            yield FigureLine(name, alone_s / seconds, "× as fast as", "over one stream")
        plain = ours.get(replace(setting, signed=False), ())
        if plain and setting.signed:
            plain_s = statistics.median(each.seconds for each in plain)
            yield FigureLine(name, seconds / plain_s, "× the time", "without signatures")


def point(what: str, peers: int, elements: int, times: Sequence[float]) -> dict[str, object]:
    """Return a point for plots. `what` is our schedule with its codec and encryption, or a
    different library with its codec. `times` are the seconds of each round."""
    return {"what": what, "peers": peers, "elements": elements, "rounds_s": list(times)}


def _secrecy(setting: AverageSetting) -> str:
    return "TLS" if setting.encrypted else "plaintext"


def name_of(setting: AverageSetting) -> str:
    return (
        f"{setting.schedule}, {setting.codec}, {_secrecy(setting)}, {setting.peers} peers, "
        f"{setting.elements:,} elements, {setting.streams} streams"
        f"{', signed' if setting.signed else ''}"
    )


def settings_of(
    peers: Sequence[int],
    elements: Sequence[int],
    schedules: Sequence[str],
    codecs: Sequence[str],
    encryption: Sequence[str],
    streams: Sequence[int],
    repeats: int,
    *,
    signed: bool = False,
) -> list[AverageSetting]:
    """Return a setting for every combination; with `signed`, also one whose peers sign their sums.
    Raises ValueError: a name is unknown."""
    made = [
        AverageSetting(
            peers=count,
            elements=size,
            codec=codec,  # type: ignore[arg-type]  # checked below
            schedule=schedule,  # type: ignore[arg-type]
            encrypted=secrecy == "tls",
            streams=number,
            repeats=repeats,
            signed=signs,
        )
        for count, size, schedule, codec, secrecy, number, signs in product(
            *(peers, elements, schedules, codecs, encryption, streams),
            (False, True) if signed else (False,),
        )
    ]
    for setting in made:
        kernels.codec(setting.codec, setting.block)
        if not 1 <= setting.streams <= STREAMS_MAX:
            raise ValueError(f"the number of streams must be 1 to {STREAMS_MAX}")
        if setting.schedule not in SCHEDULES:
            raise ValueError(f"there is no schedule {setting.schedule!r}")
    if not set(encryption) <= {"tls", "none"}:
        raise ValueError("the encryption must be tls or none")
    return made
