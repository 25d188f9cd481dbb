"""`p2ptrain bench snapshot`: hash θ and m and write them to a store, and compare with dd.

dd writes the same number of bytes. `dd conv=fsync` writes one file through the page cache and syncs
it once. `oflag=direct` bypasses the cache, as a snapshot does, and shows the speed of the disk. A
snapshot consists of many hashed files, each synced before its rename. The snapshot and both forms
of dd take turns on the same disk, and the best time of each counts.

If an update begins together with a snapshot, all of θ and m must be copied before the update
changes them. So such an update is compared with one without a snapshot, and with a mere copy.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from p2ptrain import kernels
from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.timing import elapsed_s
from p2ptrain.state import OuterState
from p2ptrain.store import Store

DD_BLOCK = "4M"
DD, DIRECT_DD = "dd conv=fsync", "dd oflag=direct conv=fsync"
Result = TypeVar("Result")
CODEC = kernels.codec("int8", 256)


def state_of(numel: int, threads: int | None = None) -> OuterState:
    """Return θ and m, with all memory pages already touched."""
    state = OuterState(numel, threads=threads)
    random = np.random.Generator(np.random.SFC64(1))
    random.random(dtype=np.float32, out=state.theta)
    state.momentum[:] = state.theta
    return state


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """Seconds and CPU seconds of one snapshot or one dd."""

    seconds: float
    cpu_s: float


def measure(numel: int, rounds: int, folder: Path | None) -> Iterable[FigureLine]:
    """Measure on the disk of `folder`; by default on that of temporary files."""
    load = os.getloadavg()[0]
    state, gigabytes = state_of(numel), 8 * numel / 1e9
    cached, around = partial(_dd, flags=DD), partial(_dd, flags=DIRECT_DD)
    ways: list[Callable[[OuterState, Path], SnapshotCost]] = [_snapshot, cached, around]
    rows: list[list[SnapshotCost]] = [[], [], []]
    for _ in range(rounds):
        for way, row in zip(ways, rows, strict=True):
            row.append(_in_a_folder(folder, partial(way, state)))
    ours, theirs, direct = ([each.seconds for each in row] for row in rows)
    yield FigureLine("snapshot, hashed and written", gigabytes / min(ours), "GB/s")
    yield FigureLine(f"{DD} of θ, twice", gigabytes / min(theirs), "GB/s")
    yield FigureLine(f"{DIRECT_DD} of θ, twice", gigabytes / min(direct), "GB/s")
    yield FigureLine("snapshot", min(theirs) / min(ours), "× as fast as", DD)
    slowest = min(other / our for other, our in zip(theirs, ours, strict=True))
    yield FigureLine("snapshot, the worst round", slowest, "× as fast as", DD)
    yield FigureLine("snapshot", min(direct) / min(ours), "× as fast as", DIRECT_DD)
    for name, row in zip(("snapshot", DD), rows, strict=False):
        cpu_s = min(each.cpu_s for each in row)
        yield FigureLine(f"{name}, processor time", cpu_s / gigabytes, "s/GB")
    alone, beside = _in_a_folder(folder, partial(_longest_apply, state))
    yield FigureLine("an update applied before a snapshot", alone, "s")
    yield FigureLine("an update applied while a snapshot is written", beside, "s")
    yield FigureLine("θ and m copied once", _copy_seconds(state), "s")
    yield FigureLine("load before", load, f"on {os.cpu_count()} cores")
    state.close()


def _in_a_folder(folder: Path | None, work: Callable[[Path], Result]) -> Result:
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-", dir=folder) as name:
        return work(Path(name))


def _snapshot(state: OuterState, folder: Path) -> SnapshotCost:
    with Store(folder / "store") as store:
        begun, cpu_s = time.monotonic(), time.process_time()
        state.write_snapshot(store, {})
        return SnapshotCost(time.monotonic() - begun, time.process_time() - cpu_s)


def _dd(state: OuterState, folder: Path, flags: str) -> SnapshotCost:
    """Write θ twice with dd, from its shared memory; the second time stands for m. `flags` are `dd`
    and some of its operands."""
    begun, cpu_s = time.monotonic(), _children_cpu_s()
    source = f"if=/proc/self/fd/{state.theta_vector.fd}"
    for number in range(2):
        target = [f"of={folder / str(number)}", f"bs={DD_BLOCK}", "status=none"]
        command = [*flags.split(), source, *target]
        subprocess.run(command, pass_fds=[state.theta_vector.fd], check=True)
    return SnapshotCost(time.monotonic() - begun, _children_cpu_s() - cpu_s)


def _children_cpu_s() -> float:
    """Return the CPU seconds of child processes, without the kernel's later work to write its cache
    to disk."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _copy_seconds(state: OuterState) -> float:
    """Return the seconds to copy θ and m to new memory in two threads, as an update does for chunks
    that a snapshot has not read yet."""
    with ThreadPoolExecutor(2) as pool:
        return elapsed_s(lambda: list(pool.map(np.copy, (state.theta, state.momentum))))


def _longest_apply(state: OuterState, folder: Path) -> tuple[float, float]:
    """Return the seconds of one update without a snapshot, and of the longest update during a
    snapshot."""
    payload = bytearray(CODEC.encoded_bytes(state.numel))
    CODEC.quantise(state.theta, payload)

    def apply() -> float:
        return elapsed_s(lambda: state.apply(memoryview(payload), 0.7, 0.9, CODEC))

    alone = min(apply() for _ in range(2))
    with Store(folder / "store") as store:
        writer = threading.Thread(target=state.write_snapshot, args=(store, {}))
        writer.start()
        beside = [apply()]
        while writer.is_alive():
            beside.append(apply())
        writer.join()
    return alone, max(beside)
