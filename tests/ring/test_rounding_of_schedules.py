"""In a ring, the rounding error of a 4-bit codec grows with the number of peers. With the other
schedules it hardly depends on this number.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2ptrain import kernels
from p2ptrain.ring.arrangement import COARSE_RING_PEERS_MAX
from p2ptrain.ring.schedules import SCHEDULES, Schedule, routes

CODEC = kernels.codec("int4", 64)
PART = 16 * CODEC.block

Vector = NDArray[np.float32]


def rounded(vector: Vector) -> Vector:
    """Return what a neighbour decodes from the encoded `vector`."""
    payload, out = bytearray(CODEC.encoded_bytes(vector.size)), np.empty_like(vector)
    CODEC.quantise(vector, payload)
    CODEC.dequantise(bytes(payload), out)
    return out


def mean_of(schedule: Schedule, vectors: Vector) -> Vector:
    """Return the mean of these peers' vectors. There is one part for each peer, and its sums are
    rounded at each hop.
    """
    peers = len(vectors)
    trees = [routes(schedule, peers, me) for me in range(peers)]
    out = np.empty(vectors.shape[1], np.float32)
    for part in range(peers):
        place = slice(part * PART, (part + 1) * PART)

        def total(me: int, part: int = part, place: slice = place) -> Vector:
            ours = vectors[me, place].copy()
            for sender in trees[me][part].sums_from:
                ours += rounded(total(sender))
            return ours

        (owner,) = (me for me in range(peers) if trees[me][part].owned)
        out[place] = rounded(total(owner) / np.float32(peers))
    return out


def error(schedule: Schedule, peers: int) -> float:
    """Return |error| ÷ |mean| for Gaussian vectors."""
    vectors = np.random.default_rng(peers).standard_normal((peers, peers * PART), np.float32)
    exact = vectors.mean(axis=0, dtype=np.float64)
    found = mean_of(schedule, vectors) - exact
    return float(np.linalg.norm(found) / np.linalg.norm(exact))


@pytest.mark.parametrize(
    ("peers", "of_ring", "of_direct", "of_grid"),
    [(4, 0.17, 0.15, 0.16), (16, 0.33, 0.15, 0.17), (64, 0.71, 0.15, 0.18)],
)
def test_4_bit_error_grows_with_the_number_of_peers_only_in_a_ring(
    peers: int, of_ring: float, of_direct: float, of_grid: float
) -> None:
    """With different random vectors these figures change by a few percent."""
    found = [error(schedule, peers) for schedule in SCHEDULES]
    assert found == pytest.approx([of_ring, of_direct, of_grid], rel=0.06)


def test_ring_of_four_peers_is_nearly_as_accurate_as_direct() -> None:
    assert error("ring", COARSE_RING_PEERS_MAX) < 1.25 * error("direct", COARSE_RING_PEERS_MAX)
