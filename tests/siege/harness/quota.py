"""Limit the CPU time that a group of processes uses, with the best method available on this
machine.

A cgroup sets the limit in the kernel: version 1 with `cpu.cfs_quota_us`, version 2 with `cpu.max`.
If a cgroup cannot be created, a thread measures the CPU time of the processes, and stops and
continues them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

PERIOD_US = 100_000
"""The kernel's default period, in microseconds. A shorter period costs more context switches. A
longer period stops processes for so long that their peers notice.
"""

LOOK_S = 0.05
"""Seconds between two measurements of the duty cycle: half the kernel's period."""

CGROUP = Path("/sys/fs/cgroup")


class Quota(Protocol):
    name: str
    """A description of the method, for the output."""

    def add(self, pid: int) -> None:
        """Put a process under the quota. With a cgroup this includes its future children."""

    def used_s(self) -> float:
        """Return the CPU seconds that the processes have used since they were added."""

    def close(self) -> None:
        """Remove the limit. The processes should have ended."""


class Cgroup:
    """A cgroup of version 1 or 2, below `parent`."""

    def __init__(self, parent: Path, cores: float) -> None:
        """Create the cgroup. Raises OSError if this machine does not permit it."""
        self._folder = parent / f"p2ptrain-siege-{os.getpid()}"
        self._version_2 = (parent / "cgroup.controllers").exists()
        self._begun: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self.name = f"cgroup v{2 if self._version_2 else 1}, {cores:g} core"
        self._folder.mkdir()
        try:
            self._limit(round(cores * PERIOD_US))
        except OSError:
            self._folder.rmdir()
            raise

    def _limit(self, quota_us: int) -> None:
        if self._version_2:
            (self._folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            return
        (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))
        self._begun[pid] = cpu_s(pid) or 0.0

    def used_s(self) -> float:
        for pid, begun_s in self._begun.items():
            now_s = cpu_s(pid)
            if now_s is not None:
                self._last[pid] = now_s - begun_s
        return sum(self._last.values())

    def close(self) -> None:
        ends_s = time.monotonic() + 5.0
        while time.monotonic() < ends_s:
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(LOOK_S)  # A process that was just killed is still in the cgroup.


class DutyCycle:
    """Stops the processes while they are over their quota, and continues them afterwards."""

    def __init__(self, cores: float) -> None:
        self.name = f"duty cycle of SIGSTOP and SIGCONT, {cores:g} core"
        self._cores = cores
        self._pids: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duty-cycle", daemon=True)
        self._thread.start()

    def add(self, pid: int) -> None:
        self._pids = self._pids | {pid: cpu_s(pid) or 0.0}

    def used_s(self) -> float:
        for pid, begun_s in self._pids.items():
            now_s = cpu_s(pid)
            if now_s is not None:
                self._used[pid] = now_s - begun_s
        return sum(self._used.values())

    def _run(self) -> None:
        allowed_s, last_s, stopped = 0.0, time.monotonic(), False
        while not self._ended.wait(LOOK_S):
            now_s = time.monotonic()
            # Unused time expires, as in a cgroup: a burst is at most as long as one period.
            allowed_s = min(
                allowed_s + self._cores * (now_s - last_s),
                self.used_s() + self._cores * PERIOD_US / 1e6,
            )
            last_s = now_s
            over = self.used_s() > allowed_s
            if over != stopped:
                stopped = over
                self._signal(signal.SIGSTOP if over else signal.SIGCONT)
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def limited(cores: float, *, cgroups: bool = True) -> Iterator[Quota]:
    """Yield a quota of `cores` to which the caller can add processes. The quota ends with the
    `with` block."""
    made = (_cgroup(cores) if cgroups else None) or DutyCycle(cores)
    try:
        yield made
    finally:
        made.close()


def _cgroup(cores: float) -> Cgroup | None:
    for parent in _parents():
        with suppress(OSError):
            return Cgroup(parent, cores)
    return None


def _parents() -> Iterator[Path]:
    """Yield folders in which to try to create a cgroup: first our own cgroup, then the root
    cgroup.
    """
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                roots = [CGROUP, CGROUP / "unified"]
            elif "cpu" in controllers.split(","):
                roots = [CGROUP / "cpu", CGROUP / controllers]
            else:
                continue
            for root in roots:
                yield root / path.lstrip("/")
    yield from (CGROUP / "cpu", CGROUP)


def cpu_s(pid: int) -> float | None:
    """Return the CPU time of a process and its ended children, or None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    values = text.rpartition(")")[2].split()
    return sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, or None if the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
