"""Checks of this machine's memory, shared memory, graphics driver, open files and clocks."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.config.node import NodeConfig
from p2ptrain.doctor.finding import Finding, Level, Tell, fault, good, warning
from p2ptrain.doctor.subject import Subject
from p2ptrain.open_files import FILES_MIN, FILES_WANTED, permitted_files, too_few_files

if TYPE_CHECKING:
    from p2ptrain.prepare.machine_check import Machine, MachineFinding

MEMORY_FREE_MIN = 1 << 30
"""Bytes of free memory that a node and its trainer take for a very small model."""

DRIVER = Path("/proc/driver/nvidia/version")

CLOCK_SAMPLES = 40
CLOCK_PAUSE_S = 0.025
JUMP_S_MAX = 0.5
"""Largest difference in seconds between two clocks over the whole check. A machine that sleeps or a
wall clock that is set makes more."""

BUILT_UNIX = 1_760_000_000
"""A time in October 2025, before p2ptrain's first version. A clock that says less is wrong."""


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """`pairs` are readings of (monotonic, wall) clock in seconds, oldest first."""

    pairs: Sequence[tuple[float, float]]


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_memory(machine: Machine) -> Finding:
    from p2ptrain.observe.states import size

    said = f"{size(machine.memory)} with swap, of which {size(machine.memory_free)} are free now"
    if machine.memory_free >= MEMORY_FREE_MIN:
        return good("memory", said)
    return warning(
        "memory",
        f"{said}: a node with its trainer needs about 1 GB even for a very small model",
        fix="close other programs, or use a machine with more memory",
        code="MEM-HOST",
    )


def judge_shared_memory(config: NodeConfig, machine: Machine) -> Finding:
    from p2ptrain.observe.states import size

    found = of_codes(config, machine, "SHM-SMALL")
    if found:
        return as_finding("shared memory", found[0])
    if machine.shm is None:
        return good("shared memory", "there is no /dev/shm, and your settings do not need it")
    return good("shared memory", f"/dev/shm has {size(machine.shm)}, enough for your settings")


def judge_driver(config: NodeConfig, machine: Machine, version: str) -> Finding:
    """Judge the graphics driver with this `version`; "" if there is no NVIDIA driver."""
    found = of_codes(config, machine, "GPU-NONE")
    if found:
        return as_finding("driver", found[0])
    if machine.takes_gpu:
        return good("driver", f"NVIDIA driver {version or 'of unknown version'}")
    if machine.has_gpu and config.device == "auto":
        return warning(
            "driver",
            "there is a GPU that is not from NVIDIA; a node uses it only if you tell it to",
            fix="if your build of torch supports this GPU, start the node with --device cuda",
        )
    return good("driver", "no NVIDIA GPU is visible, so this machine trains on its processor")


def judge_open_files(soft: int, hard: int) -> Finding:
    """Judge the limits on open files; -1 means that there is none."""
    limit = permitted_files(soft, hard)
    if limit >= FILES_WANTED:
        return good("open files", f"a node may open {limit}")
    advice = too_few_files("").do
    if limit < FILES_MIN:
        what = f"a node may open only {limit}, and needs at least {FILES_MIN}"
        return fault("open files", what, fix=advice, code="FD-LIMIT")
    what = f"a node may open {limit}; in a run of many peers it needs {FILES_WANTED}"
    return warning("open files", what, fix=advice, code="FD-LIMIT")


def judge_clock(facts: ClockFacts) -> Finding:
    """Judge the clocks of this machine. Nodes agree on nothing by wall clock, so a wrong one is
    only a warning. Deadlines use the monotonic clock, which must not go backwards."""
    steady = [monotonic for monotonic, _ in facts.pairs]
    if any(later < earlier for earlier, later in pairwise(steady)):
        return fault(
            "clock",
            "the monotonic clock of this machine went backwards, so no deadline can be kept",
            fix="update the kernel or the hypervisor, or choose another clock source for it",
            code="CLOCK",
        )
    (began, wall_began), (ended, wall_ended) = facts.pairs[0], facts.pairs[-1]
    jump_s = (wall_ended - wall_began) - (ended - began)
    if wall_ended < BUILT_UNIX:
        said = f"the wall clock says {time.strftime('%Y-%m-%d', time.gmtime(wall_ended))}"
        return _wrong_clock(f"{said}, before p2ptrain existed")
    if abs(jump_s) > JUMP_S_MAX:
        return _wrong_clock(f"the wall clock jumped by {jump_s:+.1f} s while it was watched")
    return good("clock", "the monotonic clock is steady, and the wall clock did not jump")


def _wrong_clock(said: str) -> Finding:
    return warning(
        "clock",
        f"{said}; training does not depend on it, but the times in the journal do",
        fix="let the system set its clock: timedatectl set-ntp true",
        code="CLOCK",
    )


def of_codes(config: NodeConfig, machine: Machine, *codes: str) -> list[MachineFinding]:
    """Return those findings of the node's own start-up check that have one of `codes`."""
    from p2ptrain.prepare.machine_check import findings

    return [each for each in findings(config, machine, None) if each.code in codes]


def as_finding(name: str, found: MachineFinding) -> Finding:
    if found.is_fault:
        return fault(name, found.what, fix=found.do, code=found.code)
    return Finding(name, Level.WARNING, found.what, found.do, found.code)


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def machine_facts(subject: Subject) -> Machine:
    """Measure this machine as a node does at its start, but without creating the home."""
    from p2ptrain.archive.home import Home
    from p2ptrain.prepare.machine_check import machine_of, stored_bytes

    home = subject.home
    stored = stored_bytes(home.store) + stored_bytes(home.inner)
    return replace(machine_of(Home(subject.folder, to_make=False)), stored=stored)


def memory(subject: Subject, tell: Tell) -> None:
    machine = machine_facts(subject)
    tell(judge_memory(machine))
    tell(judge_shared_memory(subject.config, machine))
    if not subject.config.seed and not subject.config.ranks_host:
        tell(judge_driver(subject.config, machine, driver_version(DRIVER)))


def driver_version(path: Path) -> str:
    """Return the version in the driver's file, such as "550.54.15"; "" if there is none."""
    try:
        words = path.read_text(errors="replace").split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def open_files(tell: Tell) -> None:
    tell(judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)))


def clock(tell: Tell) -> None:
    tell(judge_clock(clock_facts()))


def clock_facts() -> ClockFacts:
    pairs = [(time.monotonic(), time.time())]
    for _ in range(CLOCK_SAMPLES):
        time.sleep(CLOCK_PAUSE_S)
        pairs.append((time.monotonic(), time.time()))
    return ClockFacts(pairs)
