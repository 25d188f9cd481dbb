"""`p2ptrain bench allreduce`: the all-reduce of one vector among processes, against gloo's.

Ours and gloo's take turns within one run, so that a busy machine wrongs neither. A time is that of
the slowest process of a repeat; the median repeat counts.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from p2ptrain import kernels
from p2ptrain.ring import SCHEDULES
from p2ptrain.testing.bench.averaging import Measured, Setting

PEER_S_MAX = 900.0
GLOO = "gloo fp32"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: in its unit, or as a ratio against something measured in the same run."""

    measure: str
    value: float
    unit: str
    against: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all processes of one setting measured together."""

    seconds: float
    cpu_s: float
    wire_ratio: float
    """Bytes sent ÷ 2 (N − 1) ÷ N of a byte an element: what an 8-bit codec could do at best."""


def measure(settings: Sequence[Setting], rounds: int, *, gloo_too: bool = True) -> list[Line]:
    """Every setting `rounds` times in turns, gloo between them, and how they compare."""
    gloo: list[float] = []
    ours: dict[Setting, list[Outcome]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            ours[setting].append(run_here(setting))
            if gloo_too and find_spec("torch") is not None:
                gloo.append(_gloo(setting))
    return list(_lines(ours, gloo))


def run_here(setting: Setting) -> Outcome:
    """All peers of `setting`, each in a process of its own on this machine."""
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as folder:
        commands = [
            peer_command(setting, me, "127.0.0.1", Path(folder)) for me in range(setting.peers)
        ]
        answers = [json.loads(answer) for answer in _together(commands)]
    return together_of(setting, [Measured(**answer) for answer in answers])


def together_of(setting: Setting, measured: Sequence[Measured]) -> Outcome:
    digests = {each.digest for each in measured}
    if len(digests) != 1:
        raise AssertionError(f"the peers hold {len(digests)} different means")
    slowest = [max(times) for times in zip(*(each.seconds for each in measured), strict=True)]
    cpu_s = [sum(times) for times in zip(*(each.cpu_s for each in measured), strict=True)]
    ideal_bytes = 2 * (setting.peers - 1) / setting.peers * setting.elements
    most_bytes = max(each.sent_bytes for each in measured)
    return Outcome(
        statistics.median(slowest), statistics.median(cpu_s), most_bytes / max(1.0, ideal_bytes)
    )


def peer_command(setting: Setting, me: int, host: str, meeting: Path) -> list[str]:
    """What runs peer number `me`, which prints what it measured."""
    arguments = json.dumps(asdict(setting))
    module = "p2ptrain.testing.bench.peer"
    return [sys.executable, "-m", module, arguments, str(me), host, str(meeting)]


def _gloo(setting: Setting) -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [
        [sys.executable, "-m", "p2ptrain.testing.bench.gloo", str(me), str(setting.peers),
         str(setting.elements), str(setting.repeats), str(port)]
        for me in range(setting.peers)
    ]  # fmt: skip
    times: list[list[float]] = [json.loads(answer) for answer in _together(commands)]
    slowest: list[float] = [max(each) for each in zip(*times, strict=True)]
    return statistics.median(slowest)


def _together(commands: Iterable[list[str]]) -> list[str]:
    """What each of the processes prints, which run at the same time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for command in commands
    ]
    try:
        answers = [process.communicate(timeout=PEER_S_MAX)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError("a process of the bench failed; its words are above")
    return answers


def _lines(ours: dict[Setting, list[Outcome]], gloo: Sequence[float]) -> Iterable[Line]:
    beside = statistics.median(gloo) if gloo else None
    if beside is not None:
        yield Line(GLOO, beside, "s")
    for setting, outcomes in ours.items():
        name = name_of(setting)
        seconds = statistics.median(each.seconds for each in outcomes)
        yield Line(name, seconds, "s")
        yield Line(name, statistics.median(each.cpu_s for each in outcomes), "CPU s")
        yield Line(name, outcomes[0].wire_ratio, "×", "bytes of an ideal 8-bit all-reduce")
        if beside is not None:
            yield Line(name, beside / seconds, "× as fast as", GLOO)


def name_of(setting: Setting) -> str:
    secrecy = "TLS" if setting.encrypted else "plaintext"
    return (
        f"{setting.schedule}, {setting.codec}, {secrecy}, {setting.peers} peers, "
        f"{setting.elements:,} elements, {setting.streams} streams"
    )


def settings_of(
    peers: Sequence[int],
    elements: int,
    schedules: Sequence[str],
    codecs: Sequence[str],
    encryption: Sequence[str],
    streams: int,
    repeats: int,
) -> list[Setting]:
    """Every combination. Raises ValueError for a name that nothing has."""
    made = [
        Setting(
            peers=count,
            elements=elements,
            codec=codec,  # type: ignore[arg-type]  # checked below
            schedule=schedule,  # type: ignore[arg-type]
            encrypted=secrecy == "tls",
            streams=streams,
            repeats=repeats,
        )
        for count in peers
        for schedule in schedules
        for codec in codecs
        for secrecy in encryption
    ]
    for setting in made:
        kernels.codec(setting.codec, setting.block)
        if setting.schedule not in SCHEDULES:
            raise ValueError(f"there is no schedule {setting.schedule!r}")
    if not set(encryption) <= {"tls", "none"}:
        raise ValueError("encryption is tls or none")
    return made
