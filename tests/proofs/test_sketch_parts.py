"""The parts of a vector are whole blocks, and their sketches add up to that of the vector."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.kernels import CodecName, codec
from p2ptrain.kernels.sketch_reference import sketch as reference
from p2ptrain.proofs.sketch_parts import (
    PART_ELEMENTS_MIN,
    SKETCHES_MAX,
    TURN,
    part_cuts,
    part_of,
    sketch_of_bytes,
    turns,
)
from p2ptrain.proofs.sketches import sketch
from p2ptrain.proofs.stated_sketch import PARTS_MAX

SEED, UNIT = 7, -28


@pytest.mark.parametrize("peers", [3, 32, 33, 512, 1024])
@pytest.mark.parametrize("numel", [1, 255, 256, 10_000, 700_001, 3_000_000])
def test_parts_are_few_and_cover_whole_blocks(numel: int, peers: int) -> None:
    cuts = part_cuts(numel, 256, peers)
    assert (cuts[0], cuts[-1]) == (0, numel)
    assert all(each % 256 == 0 for each in cuts[:-1])
    assert list(cuts) == sorted(set(cuts))
    assert len(cuts) - 1 <= min(PARTS_MAX, max(1, SKETCHES_MAX // peers))
    assert len(cuts) == 2 or min(np.diff(cuts)) > PART_ELEMENTS_MIN - 256


def test_long_parts_are_sketched_one_by_one_and_short_ones_together() -> None:
    def numbers(cuts: tuple[int, ...]) -> list[list[int]]:
        return [list(each) for each in turns(cuts)]

    assert numbers((0, 5)) == [[0]]
    assert numbers(part_cuts(3_000_000, 256, 3)) == [list(range(16))]
    assert numbers(part_cuts(10**9, 256, 3)) == [[part] for part in range(16)]
    assert numbers((0, TURN - 1, TURN, TURN + 1)) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("name", "block"), [("fp32", 256), ("fp16", 7), ("int8", 256), ("int4", 64)]
)
def test_sketches_of_parts_add_up(name: CodecName, block: int) -> None:
    made, numel = codec(name, block), 600_100
    values = np.random.default_rng(1).standard_normal(numel, np.float32)
    payload = bytearray(made.encoded_bytes(numel))
    made.quantise(values, payload)
    made.dequantise(payload, values)
    cuts = part_cuts(numel, block, 3)
    parts = [
        sketch_of_bytes(
            made,
            part_of(made, memoryview(payload), cuts, part),
            cuts[part],
            cuts[part + 1],
            SEED,
            UNIT,
        )
        for part in range(len(cuts) - 1)
    ]
    assert len(parts) > 1
    assert (np.sum(parts, axis=0) == sketch(values, SEED, UNIT)).all()
    assert (np.sum(parts, axis=0) == reference(values, SEED, UNIT)).all()
