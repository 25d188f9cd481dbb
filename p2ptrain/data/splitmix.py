"""Reproducible random numbers: the splitmix64 generator, which can start at any position.

A run's data must be the same on every machine, today and in ten years, so that anybody can verify
them. numpy guarantees stable bit generators, but not stable distributions. Python's own generator
is too slow for billions of numbers. Splitmix64 (Steele, Lea and Flood, 2014) takes five lines. Its
n-th number does not depend on the earlier numbers, so the result does not depend on how many are
drawn at a time.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

Draws = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def draws(seed: int, use: str, start: int, count: int) -> Draws:
    """Return `count` 64-bit numbers, starting at position `start`, of the sequence for this seed
    and use. Sequences for different uses are independent.
    """
    base = int.from_bytes(blake3(f"{seed} {use}".encode()).digest(8), "little")
    place = np.arange(start + 1, start + 1 + count, dtype=np.uint64)
    mixed = np.uint64(base) + place * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def below(drawn: Draws, limit: int) -> NDArray[np.int64]:
    """Scale each draw to 0 … limit - 1, preserving their order. `limit` is at most 2³²."""
    assert 0 < limit <= 2**32
    return (((drawn >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
