"""`p2ptrain bench replay`: measure how fast updates are applied, and the bytes fetched to catch up.

Memory bandwidth is the limit: applying an update reads and writes θ and m, and reads one byte per
parameter. So applying an update is compared with a copy of the same bytes by the same number of
threads. Bytes read and bytes written both count.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from p2ptrain import kernels
from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.snapshot import state_of
from p2ptrain.bench.timing import elapsed_s
from p2ptrain.errors import counted
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.node.outer_state.snapshot_choice import HeldStates, choose_start
from p2ptrain.state.shared_vector import Float32Vector

LR, MU = 0.7, 0.9
MISSED_STEPS = 8


def measure(numel: int, threads: int, rounds: int, codec: kernels.Codec) -> Iterable[FigureLine]:
    """Measure the update and the copy alternately, `rounds` times each; the best time of each
    counts."""
    state = state_of(numel, threads)
    payload = bytearray(codec.encoded_bytes(numel))
    codec.quantise(state.theta, payload)
    copied = np.empty_like(state.theta)
    applied, copying = [], []
    for _ in range(rounds):
        copying.append(elapsed_s(lambda: _copy(state.theta, copied, threads)))
        applied.append(elapsed_s(lambda: state.apply(memoryview(payload), LR, MU, codec)))
    memcpy_gb_per_s = 2 * 4 * numel / min(copying) / 1e9
    touched = 2 * 8 * numel + len(payload)
    apply_gb_per_s = touched / min(applied) / 1e9
    what = f"apply {codec.name}, {numel:,} parameters, {counted(threads, 'thread')}"
    yield FigureLine(what, min(applied), "s")
    yield FigureLine("apply, bytes touched", apply_gb_per_s, "GB/s")
    yield FigureLine("memcpy, bytes touched", memcpy_gb_per_s, "GB/s")
    yield FigureLine("apply", apply_gb_per_s / memcpy_gb_per_s, "× as fast as", "memcpy")
    yield from catching_up(numel, codec)
    state.close()


def catching_up(numel: int, codec: kernels.Codec) -> Iterable[FigureLine]:
    """Yield the bytes of the missed updates, and the bytes that a node chooses to fetch, both
    relative to a snapshot."""
    update_bytes, snapshot_bytes = codec.encoded_bytes(numel), 8 * numel
    log_bytes = MISSED_STEPS * update_bytes
    own, newest = SnapshotRef(0, Digest("0" * 64)), SnapshotRef(MISSED_STEPS, Digest("1" * 64))
    chosen = choose_start(
        target_step=MISSED_STEPS,
        starts=[own, newest],
        here=HeldStates(frozenset({own.digest})),
        snapshot_bytes=snapshot_bytes,
        update_bytes=update_bytes,
    )
    chosen_bytes = log_bytes if chosen == own else snapshot_bytes
    name, unit, against = f"{MISSED_STEPS} missed steps", "×", "a snapshot's bytes"
    yield FigureLine(f"bytes of all updates of {name}", log_bytes / snapshot_bytes, unit, against)
    share = chosen_bytes / snapshot_bytes
    yield FigureLine(f"bytes that a node fetches after {name}", share, unit, against)


def _copy(source: Float32Vector, target: Float32Vector, threads: int) -> None:
    share = -(-len(source) // threads)

    def one(start: int) -> None:
        target[start : start + share] = source[start : start + share]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(0, len(source), share)))
