"""`p2ptrain bench snapshot`: θ and m hashed and written into a store, against dd of the same bytes.

`dd conv=fsync` writes one file and syncs it once; a snapshot is many files, each synced before it
has a name, and hashed. The two take turns, on the same disk, and the best of each counts.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from p2ptrain import kernels
from p2ptrain.state import OuterState
from p2ptrain.store import Store
from p2ptrain.testing.bench.lines import Line

DD_BLOCK = "4M"
CODEC = kernels.codec("int8", 256)


def state_of(numel: int, threads: int | None = None) -> OuterState:
    """θ and m of which every page is touched."""
    state = OuterState(numel, threads=threads)
    random = np.random.Generator(np.random.SFC64(1))
    state.theta[:] = random.random(numel, dtype=np.float32)
    state.momentum[:] = state.theta
    return state


def measure(numel: int, rounds: int, folder: Path | None) -> Iterable[Line]:
    """`folder` is on the disk that is meant; the one for temporary files if None."""
    state, size = state_of(numel), 8 * numel
    ours, theirs, applying = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-", dir=folder) as name:
            theirs.append(_dd_seconds(state, Path(name)))
            ours.append(_snapshot_seconds(state, Path(name)))
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-", dir=folder) as name:
        applying = _longest_apply(state, Path(name))
    yield Line("snapshot, hashed and written", size / min(ours) / 1e9, "GB/s")
    yield Line("dd conv=fsync of θ, twice", size / min(theirs) / 1e9, "GB/s")
    yield Line("snapshot", min(theirs) / min(ours), "× as fast as", "dd conv=fsync")
    yield Line("an update applied before a snapshot", applying[0], "s")
    yield Line("an update applied while a snapshot is written", applying[1], "s")
    state.close()


def _snapshot_seconds(state: OuterState, folder: Path) -> float:
    with Store(folder / "store") as store:
        begun = time.monotonic()
        state.write_snapshot(store, {})
        return time.monotonic() - begun


def _dd_seconds(state: OuterState, folder: Path) -> float:
    """θ is read from the memory that it lies in, as m would be, which has the same bytes."""
    begun = time.monotonic()
    for number in range(2):
        subprocess.run(
            [
                "dd",
                f"if=/proc/self/fd/{state.theta_fd}",
                f"of={folder / str(number)}",
                f"bs={DD_BLOCK}",
                "conv=fsync",
                "status=none",
            ],
            pass_fds=[state.theta_fd],
            check=True,
        )
    return time.monotonic() - begun


def _longest_apply(state: OuterState, folder: Path) -> list[float]:
    """Seconds of one update by itself, and of the longest while a snapshot is written."""
    payload = bytearray(CODEC.encoded_bytes(state.numel))
    CODEC.quantise(state.theta, payload)

    def apply() -> float:
        begun = time.monotonic()
        state.apply(memoryview(payload), 0.7, 0.9, CODEC)
        return time.monotonic() - begun

    alone = min(apply() for _ in range(2))
    with Store(folder / "store") as store:
        writer = threading.Thread(target=state.write_snapshot, args=(store, {}))
        writer.start()
        beside = [apply()]
        while writer.is_alive():
            beside.append(apply())
        writer.join()
    return [alone, max(beside)]
