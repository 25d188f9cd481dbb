"""Make plausible states of an inner optimizer without using torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.state import Layout
from p2ptrain.trainer.formats import inner_format
from p2ptrain.trainer.formats.inner_bounds import is_muons

Floats = NDArray[np.float32]


def trained(layout: Layout, inner: InnerSpec, steps: int = 30) -> tuple[Floats, Floats]:
    """Return the first and second moments after `steps` gradients, each clipped to `inner.clip`.
    The gradients grow by a tenth from step to step."""
    random = np.random.default_rng(7)
    covered, muons = np.zeros(layout.numel, bool), np.zeros(layout.numel, bool)
    for entry in layout.entries:
        covered[entry.offset : entry.end] = True
        muons[entry.offset : entry.end] = is_muons(entry, inner)
    first, second = (np.zeros(layout.numel, np.float32) for _ in range(2))
    fast, slow = (np.float32(beta) for beta in inner.betas)
    usual = random.standard_normal(layout.numel)
    for step in range(steps):
        gradient = (usual + random.standard_normal(layout.numel)) * covered * 1.1 ** (step - steps)
        gradient *= inner.clip / max(inner.clip, float(np.linalg.norm(gradient)))
        gradient = gradient.astype(np.float32)
        first += (1 - fast) * (gradient - first)
        second += (1 - slow) * (gradient * gradient * ~muons - second)
    return first, second


def write_state(
    folder: Path,
    layout: Layout,
    step: int,
    vectors: tuple[Floats, Floats],
    count: int = 30,
    warmed: int = inner_format.WARM,
) -> Path:
    """Write the state as a trainer does."""
    new = folder / "new"
    inner_format.reserve(new, layout)
    with new.open("r+b", buffering=0) as file:
        data = b"".join(vector.astype("<f4").tobytes() for vector in vectors)
        inner_format.write_all(file.fileno(), memoryview(data), inner_format.HEADER_BYTES)
        inner_format.write_header(file.fileno(), layout, step, count, warmed)
    inner_format.publish(new, folder, step)
    return inner_format.path_of(folder, step)
