"""The parts of a vector are whole blocks, and their sketches add up to that of the vector."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.kernels import codec
from p2ptrain.proofs.sketch_parts import (
    SKETCHES_MAX,
    part_cuts,
    part_of,
    sketch_of_bytes,
)
from p2ptrain.proofs.sketches import sketch
from p2ptrain.proofs.stated_sketch import PARTS_MAX

SEED, UNIT = 7, -28


@pytest.mark.parametrize("peers", [3, 32, 33, 512, 1024])
@pytest.mark.parametrize("numel", [1, 255, 256, 10_000, 700_001])
def test_parts_are_few_and_cover_whole_blocks(numel: int, peers: int) -> None:
    cuts = part_cuts(numel, 256, peers)
    assert (cuts[0], cuts[-1]) == (0, numel)
    assert all(each % 256 == 0 for each in cuts[:-1])
    assert list(cuts) == sorted(set(cuts))
    assert len(cuts) - 1 <= min(PARTS_MAX, max(1, SKETCHES_MAX // peers))


def test_sketches_of_parts_add_up() -> None:
    int8, numel = codec("int8", 256), 600_100
    values = np.random.default_rng(1).standard_normal(numel, np.float32)
    payload = bytearray(int8.encoded_bytes(numel))
    int8.quantise(values, payload)
    int8.dequantise(payload, values)
    cuts = part_cuts(numel, 256, 3)
    parts = [
        sketch_of_bytes(
            int8,
            part_of(int8, memoryview(payload), cuts, part),
            cuts[part],
            cuts[part + 1],
            SEED,
            UNIT,
        )
        for part in range(len(cuts) - 1)
    ]
    assert (np.sum(parts, axis=0) == sketch(values, SEED, UNIT)).all()
