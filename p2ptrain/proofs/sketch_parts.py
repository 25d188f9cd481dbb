"""The parts of a vector for which sketches are stated, and the sketch of quantised bytes.

A statement has one sketch for each part. So if the statements do not add up to the update, a
participant knows in which part, and has to fetch only this part of all contributions. All parts
consist of whole blocks of the codec.
"""

from __future__ import annotations

import numpy as np

from p2ptrain.kernels import WIDTH, Codec, Sums, add_sketch
from p2ptrain.proofs.stated_sketch import PARTS_MAX

SKETCHES_MAX = 512
"""Maximum number of sketches that a participant receives for one average: 1 MiB. So with more than
32 participants, each of them states fewer parts."""

PART_ELEMENTS_MIN = 1 << 16
"""Minimum number of elements of a part, if there are several. A sketch has 2 KiB, so sketches of
shorter parts would be longer than the update itself."""

WINDOW = 1 << 16
"""Elements that are decompressed at a time: 256 KiB of fp32, which stay in the cache of a core."""

TURN = 1 << 24
"""Elements that are sketched without a break: those of one part, or of several shorter ones. That
takes about a hundredth of a second, and a node that stops waits for it."""


def part_cuts(numel: int, block: int, peers: int) -> tuple[int, ...]:
    """Return the elements at which the parts begin, and the number of elements."""
    blocks = -(-numel // block)
    parts = max(1, min(PARTS_MAX, SKETCHES_MAX // peers, blocks, numel // PART_ELEMENTS_MIN))
    return tuple(min(numel, part * blocks // parts * block) for part in range(parts + 1))


def sketch_of_bytes(
    codec: Codec, payload: memoryview, first: int, stop: int, seed: int, unit_exponent: int
) -> Sums:
    """Return the sketch of the elements [first, stop) of a vector. `payload` has the bytes of
    exactly these elements, and `first` is the beginning of a block.

    Raises:
        BadScale: no codec writes these bytes.
        ValueError: an element is too large; see `sketch`.
    """
    total = np.zeros(WIDTH, np.int64)
    length = max(codec.block, WINDOW // codec.block * codec.block)
    memory = np.empty(min(length, stop - first), np.float32)
    for low in range(first, stop, length):
        high = min(low + length, stop)
        values = memory[: high - low]
        cut = slice(codec.encoded_bytes(low - first), codec.encoded_bytes(high - first))
        codec.dequantise(payload[cut], values)
        add_sketch(values, seed, unit_exponent, low, total)
    return total


def turns(cuts: tuple[int, ...]) -> list[range]:
    """Return the numbers of the parts that are sketched without a break, turn by turn."""
    found, first = [], 0
    for part in range(1, len(cuts)):
        if cuts[part] - cuts[first] >= TURN or part == len(cuts) - 1:
            found.append(range(first, part))
            first = part
    return found


def part_of(codec: Codec, payload: memoryview, cuts: tuple[int, ...], part: int) -> memoryview:
    """Return the bytes of a part of the vector whose bytes are `payload`."""
    return payload[codec.encoded_bytes(cuts[part]) : codec.encoded_bytes(cuts[part + 1])]
