"""Random numbers that stay the same for ever: splitmix64, by position.

What a run's data are made of must come out alike on every machine, today and in ten years, so that
anybody can check it. numpy promises that of its bit generators and not of what it draws with them;
Python's own are too slow for billions. Splitmix64 (Steele, Lea and Flood, 2014) is five lines, and
its n-th number needs none of those before it, so nothing depends on how much is drawn at a time.
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
    """Numbers `start` to `start + count` of the sequence that `seed` has for this use, 64 bits
    each. Sequences of different uses have nothing to do with each other.
    """
    base = int.from_bytes(blake3(f"{seed} {use}".encode()).digest(8), "little")
    place = np.arange(start + 1, start + 1 + count, dtype=np.uint64)
    mixed = np.uint64(base) + place * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def below(drawn: Draws, limit: int) -> NDArray[np.int64]:
    """Each draw's share of `limit`, which is at most 2³²: 0 to limit - 1, in the draws' order."""
    assert 0 < limit <= 2**32
    return (((drawn >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
