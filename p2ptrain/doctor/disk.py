"""Checks of the disk that holds, or will hold, the home: space, speed, and the time of a flush."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.doctor.finding import Finding, Tell, fault, good, warning
from p2ptrain.doctor.subject import Subject

FREE_FAULT = 200 * 10**6
"""Bytes of free disk below which a node cannot keep even its ledger and its journal for long."""
FREE_WARNING = 5 * 10**9

TRIAL_BYTES = 64 << 20
PIECE_BYTES = 4 << 20
"""The size of a chunk in most runs."""
TRIAL_S_MAX = 4.0
FLUSHES = 5

RATE_MIN = 20e6
"""Bytes per second below which writing a snapshot takes longer than an exchange."""
FLUSH_S_MAX = 0.25
"""Seconds. A voter flushes its vote to the disk before it sends it, several times in each outer
step, and the other peers wait for that."""

MAKE_ROOM = "free some disk space, or set --home to a folder on a larger disk"


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """`write_rate` is in bytes per second; None if the disk has too little room for the trial."""

    folder: Path
    free: int
    write_rate: float | None
    flush_s: float


def judge_space(facts: DiskFacts) -> Finding:
    from p2ptrain.observe.states import size

    said = f"{size(facts.free)} are free in {facts.folder}"
    if facts.free < FREE_FAULT:
        return fault("disk space", f"only {said}", fix=MAKE_ROOM, code="DISK-LOW")
    if facts.free < FREE_WARNING:
        what = f"only {said}; snapshots of a small model and training data take a few GB"
        return warning("disk space", what, fix=MAKE_ROOM, code="DISK-LOW")
    return good("disk space", said)


def judge_speed(facts: DiskFacts) -> Finding:
    from p2ptrain.observe.states import size

    flush = f"flushing a vote takes {facts.flush_s * 1000:.0f} ms"
    rate = facts.write_rate
    said = flush if rate is None else f"writes {size(rate)}/s, and {flush}"
    slow = (rate is not None and rate < RATE_MIN) or facts.flush_s > FLUSH_S_MAX
    if not slow:
        return good("disk speed", said)
    return warning(
        "disk speed",
        f"{said}: this disk is slow, so other peers may wait for this node",
        fix="set --home to a folder on a local disk (not a network share or a memory card), or "
        "see which program is using the disk",
        code="DISK-SLOW",
    )


def disk(subject: Subject, tell: Tell) -> None:
    if not os.access(subject.folder, os.W_OK | os.X_OK):
        return  # The check of the home says so.
    facts = disk_facts(subject.folder)
    tell(judge_space(facts))
    tell(judge_speed(facts))


def disk_facts(folder: Path) -> DiskFacts:
    """Write to a temporary file in `folder`, which has no name, so nothing of it can stay behind.

    Raises OSError: the folder cannot be written to.
    """
    free = shutil.disk_usage(folder).free
    with tempfile.TemporaryFile(dir=folder, prefix=".p2ptrain-doctor-", buffering=0) as file:
        room = free > 4 * TRIAL_BYTES
        rate = _write_rate(file.fileno()) if room else None
        flush_s = statistics.median(_flush_s(file.fileno()) for _ in range(FLUSHES))
    return DiskFacts(folder, free, rate, flush_s)


def _write_rate(descriptor: int) -> float:
    """Return the bytes per second that reach the disk. End after TRIAL_S_MAX on a slow one."""
    piece, written, began = os.urandom(PIECE_BYTES), 0, time.monotonic()
    while written < TRIAL_BYTES and time.monotonic() < began + TRIAL_S_MAX:
        written += os.write(descriptor, piece)
        os.fdatasync(descriptor)
    return written / (time.monotonic() - began)


def _flush_s(descriptor: int) -> float:
    began = time.monotonic()
    os.write(descriptor, b"vote")
    os.fsync(descriptor)
    return time.monotonic() - began
