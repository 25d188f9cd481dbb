"""`rda` as a ring averages it: lengths travel with directions, and all peers get the same bits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from p2ptrain.kernels import UNBOUNDED, codec
from p2ptrain.state import Layout
from p2ptrain.sync.fragments import fragments
from p2ptrain.sync.merging import LANES, norm_of, rda
from p2ptrain.sync.radial import HEADROOM, Radial

SHAPES = {
    "blocks.0.a": (80, 66),
    "blocks.0.b": (7,),
    "blocks.1.a": (40, 33),
    "embedding.weight": (50, 9),
    "norm": (9,),
}
LAYOUT = Layout.of(SHAPES.items())
WHOLE = Radial.of(LAYOUT, fragments(LAYOUT, 1)[0], 64)
MOST = 0.5


def drawn(seed: int) -> np.ndarray:
    """A pseudo-gradient. Each tensor has a length of its own, and the padding is zero."""
    random, vector = np.random.default_rng(seed), np.zeros(LAYOUT.numel, np.float32)
    for entry in LAYOUT.entries:
        values = random.standard_normal(entry.numel).astype(np.float32)
        vector[entry.offset : entry.end] = values * np.float32(random.uniform(1e-3, 1e-1))
    return vector


def in_order(vector: np.ndarray) -> float:
    sums = [0.0] * min(LANES, vector.size)
    for number, value in enumerate(vector.tolist()):
        sums[number % LANES] += value * value
    return math.sqrt(math.fsum(sums))


@pytest.mark.parametrize("numel", [0, 1, 7, 31, 4095, LANES - 1, LANES, LANES + 1, 3 * LANES + 17])
def test_length_is_summed_in_one_order_on_all_machines(numel: int) -> None:
    vector = np.random.default_rng(numel).standard_normal(numel + 1).astype(np.float32)
    vector[::5] *= np.float32(1e-40)
    for given in (vector[:-1], vector[1:]):
        assert norm_of(given) == in_order(given)


def test_mean_of_contributions_follows_the_formula() -> None:
    vectors, weights = [drawn(seed) for seed in range(3)], np.array([3, 1, 2], np.float64)
    contributions = [WHOLE.contribution(each, MOST) for each in vectors]
    mean = np.average(contributions, axis=0, weights=weights).astype(np.float32)
    merged = WHOLE.merged(mean, UNBOUNDED)
    expected = rda(vectors, list(weights), WHOLE.spans)
    np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-8)
    plain = np.average(vectors, axis=0, weights=weights)
    assert norm_of(merged) > 1.3 * norm_of(plain.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "off"), [("fp32", 1e-6), ("fp16", 2e-3), ("int8", 1e-6), ("int4", 1e-2)]
)
def test_codec_keeps_lengths_better_than_elements(name: str, off: float) -> None:
    own, short = drawn(1), codec(name, 64)  # type: ignore[arg-type]
    contribution = WHOLE.contribution(own, MOST)
    payload = bytearray(short.encoded_bytes(contribution.size))
    short.quantise(contribution, payload)
    told = np.empty_like(contribution)
    short.dequantise(payload, told)
    merged = WHOLE.merged(told, UNBOUNDED)
    for start, stop in WHOLE.spans:
        assert norm_of(merged[start:stop]) == pytest.approx(norm_of(own[start:stop]), rel=off)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fragments_are_merged_like_the_whole(count: int) -> None:
    own, put_together = drawn(2), np.zeros(LAYOUT.numel, np.float32)
    for fragment in fragments(LAYOUT, count):
        radial = Radial.of(LAYOUT, fragment, 64)
        part = np.empty(fragment.numel, np.float32)
        fragment.gather(own, part)
        contribution = radial.contribution(part, MOST)
        assert contribution.size == radial.contributed
        fragment.scatter(radial.merged(contribution, UNBOUNDED), put_together)
    np.testing.assert_allclose(put_together, own, rtol=1e-5)


def test_embeddings_are_averaged_plainly_and_in_their_place() -> None:
    own = drawn(3)
    entry = next(each for each in LAYOUT.entries if each.name.startswith("embedding."))
    place = slice(entry.offset, entry.end)
    contribution = WHOLE.contribution(own, MOST)
    assert contribution[place].tobytes() == own[place].tobytes()
    assert WHOLE.merged(contribution, UNBOUNDED)[place].tobytes() == own[place].tobytes()


def test_no_contributed_element_exceeds_the_bound() -> None:
    spiky = np.zeros(LAYOUT.numel, np.float32)
    spiky[5], spiky[6000] = MOST, 1e-42
    contribution = WHOLE.contribution(spiky, MOST)
    assert contribution[5] == pytest.approx(MOST)
    assert np.abs(contribution).max() == contribution[5]
    usual = WHOLE.contribution(drawn(4), MOST)
    start, stop = WHOLE.spans[0]
    assert norm_of(usual[start:stop]) == pytest.approx(MOST / HEADROOM * math.sqrt(stop - start))


def test_zero_work_and_cancelling_work_move_nothing() -> None:
    own, still = drawn(5), np.zeros(LAYOUT.numel, np.float32)
    assert not WHOLE.contribution(still, MOST).any()
    opposed = [WHOLE.contribution(each, MOST) for each in (own, -own)]
    mean = ((opposed[0] + opposed[1]) / 2).astype(np.float32)
    merged = WHOLE.merged(mean, UNBOUNDED)
    assert not merged.any()


def test_nonfinite_values_are_left_for_the_ring_to_refuse() -> None:
    for value in (math.nan, math.inf):
        own = drawn(6)
        own[3] = value
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(WHOLE.contribution(own, MOST)).all()


def test_applied_change_is_finite_and_bounded_for_any_update() -> None:
    random = np.random.default_rng(7)
    mean = random.standard_normal(WHOLE.contributed).astype(np.float32)
    for tiny, large in ((1e-45, 1e30), (1e-30, 1e25), (1.0, -1e30), (0.0, -1e30)):
        lie = (mean * np.float32(tiny)).astype(np.float32)
        lie[-64 * len(WHOLE.spans) :] = large
        merged = WHOLE.merged(lie, 1e20)
        assert np.isfinite(merged).all()
        assert np.abs(merged).max() <= np.float32(1e20)


def test_negative_length_reverses_nothing() -> None:
    """No honest peer sends one. A liar that does would make all weights go uphill."""
    lie = WHOLE.contribution(drawn(8), MOST)
    lie[-64 * len(WHOLE.spans) :] *= -1
    merged = WHOLE.merged(lie, MOST)
    for start, stop in WHOLE.spans:
        assert not merged[start:stop].any()


def test_honest_updates_merge_to_the_same_bits_with_or_without_bound() -> None:
    vectors = [drawn(seed) for seed in range(9, 13)]
    most = 10 / 1.2 * max(float(np.abs(each).max()) for each in vectors)
    mean = np.mean([WHOLE.contribution(each, most) for each in vectors], axis=0)
    for given in (mean.astype(np.float32), WHOLE.contribution(vectors[0], most)):
        assert WHOLE.merged(given, most).tobytes() == WHOLE.merged(given, UNBOUNDED).tobytes()
