"""Ask this machine whether it runs on battery, and whether other programs use its GPUs.

The GPU is asked with nvidia-smi, which is part of NVIDIA's driver. If a machine does not
report a fact, the node assumes that the fact does not hold, and the status says so.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

ASK_S = 10.0
"""Time limit of nvidia-smi, which usually takes a second. With a broken driver, it may hang."""

USED_PERCENT = 10
"""Percent of a GPU's time from which on a program counts as using it. A desktop uses a few."""

NAMED_MAX = 3
NAME_CHARACTERS_MAX = 40


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that the machine reports. `missing` names, in words, the wanted facts that it does
    not report."""

    on_battery: bool = False
    gpu_used_by: str = ""
    missing: tuple[str, ...] = ()


def machine_facts(*, battery: bool, gpu: bool) -> MachineFacts:
    """Return the facts that are wanted. Blocks: call it in a thread."""
    power, used_by = _on_battery() if battery else False, _gpu_used_by() if gpu else ""
    missing = []
    if power is None:
        missing.append("this machine does not report whether it runs on battery")
    if used_by is None:
        missing.append("nvidia-smi does not report which programs use the GPU")
    return MachineFacts(bool(power), used_by or "", tuple(missing))


def _on_battery() -> bool | None:
    """Return whether the machine runs on battery; None if it does not say."""
    battery = psutil.sensors_battery()
    if battery is None or battery.power_plugged is None:
        return None
    return not battery.power_plugged


def _gpu_used_by() -> str | None:
    """Return the names of other programs that use a GPU; None if that cannot be found out."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        told = subprocess.run(
            [command, "pmon", "-c", "1", "-s", "u"],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    own = psutil.Process()
    return used_by_others(told, {own.pid, *(child.pid for child in own.children(recursive=True))})


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
