"""Ask this machine whether it runs on battery, whether other programs use its GPUs, and when
somebody last used it.

The GPU is asked with nvidia-smi, which is part of NVIDIA's driver. If a machine does not
report a fact, the node assumes that the fact does not hold, and the status says so.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from p2ptrain.availability.activity import desktops_in, used_at

ASK_S = 10.0
"""Time limit of nvidia-smi, which usually takes a second. With a broken driver, it may hang. It is
also the time limit of loginctl, which takes some milliseconds."""

USED_PERCENT = 10
"""Percent of a GPU's time from which on a program counts as using it. A desktop uses a few."""

DEVICES = Path("/dev")
SESSIONS_MAX = 64
NAMED_MAX = 3
NAME_CHARACTERS_MAX = 40


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that the machine reports. `missing` names, in words, the wanted facts that it does
    not report. `used_at`: when somebody last used the machine, in Unix seconds; None if that was
    not asked or is not known."""

    on_battery: bool = False
    gpu_used_by: str = ""
    used_at: float | None = None
    missing: tuple[str, ...] = ()


def machine_facts(*, battery: bool, gpu: bool, user: bool) -> MachineFacts:
    """Return the facts that are wanted. Blocks: call it in a thread."""
    power, used_by = _on_battery() if battery else False, _gpu_used_by() if gpu else ""
    used = used_at(desktops_in(_sessions()), inputs_in(DEVICES), time.time()) if user else None
    missing = []
    if power is None:
        missing.append("this machine does not report whether it runs on battery")
    if used_by is None:
        missing.append("nvidia-smi does not report which programs use the GPU")
    if user and used is None:
        missing.append("this machine does not report when somebody last used it")
    return MachineFacts(bool(power), used_by or "", used, tuple(missing))


def _on_battery() -> bool | None:
    """Return whether the machine runs on battery; None if it does not say."""
    battery = psutil.sensors_battery()
    if battery is None or battery.power_plugged is None:
        return None
    return not battery.power_plugged


def _gpu_used_by() -> str | None:
    """Return the names of other programs that use a GPU; None if that cannot be found out."""
    told = _said("nvidia-smi", "pmon", "-c", "1", "-s", "u")
    if told is None:
        return None
    own = psutil.Process()
    return used_by_others(told, {own.pid, *(child.pid for child in own.children(recursive=True))})


def _said(program: str, *words: str) -> str | None:
    """Return the output of a program; None if it is not installed, fails or hangs."""
    command = shutil.which(program)
    if command is None:
        return None
    try:
        return subprocess.run(
            [command, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _sessions() -> str:
    """Return what logind tells about the sessions of this machine; "" if it does not answer."""
    listed = _said("loginctl", "list-sessions", "--no-legend", "--no-pager") or ""
    ids = [line.split()[0] for line in listed.splitlines() if line.strip()][:SESSIONS_MAX]
    wanted = ("Class", "Type", "State", "IdleHint", "IdleSinceHint", "LockedHint")
    options = ["--no-pager", *(f"--property={name}" for name in wanted)]
    return (_said("loginctl", "show-session", *options, *ids) or "") if ids else ""


def inputs_in(devices: Path) -> list[float]:
    """Return the time of the last input of each terminal in this folder, in Unix seconds."""
    found = list[float]()
    for terminal in (*devices.glob("pts/[0-9]*"), *devices.glob("tty[1-9]*")):
        with suppress(OSError):
            found.append(terminal.stat().st_atime)
    return found


def used_by_others(
    told: str, own: Iterable[int], *, exists: Callable[[int], bool] = psutil.pid_exists
) -> str | None:
    """Return the names of the programs in `told`, the output of `nvidia-smi pmon`, that use a GPU
    and are not among the processes `own`. Return None if `told` lists only processes that do not
    exist here: in a container, nvidia-smi may show the process ids of the host, so this node cannot
    recognise its own trainer."""
    own_pids, names, unknown, known = frozenset(own), list[str](), 0, 0
    for line in told.splitlines():
        words = line.split()
        if len(words) < 5 or not words[1].isdigit():
            continue
        pid, percent, name = int(words[1]), words[3], words[-1]
        if not exists(pid):
            unknown += 1
            continue
        known += 1
        used = percent.isdigit() and int(percent) >= USED_PERCENT
        if used and pid not in own_pids:
            names.append("".join(filter(str.isprintable, name))[:NAME_CHARACTERS_MAX])
    if unknown and not known:
        return None
    return ", ".join(sorted(set(names))[:NAMED_MAX])
