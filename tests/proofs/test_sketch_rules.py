"""Honest contributions break no rule, and each kind of lie breaks the rule made for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from p2ptrain.kernels import CodecName, codec
from p2ptrain.proofs.sketch_rules import (
    Judged,
    Rule,
    accused_by,
    expected_length,
    is_too_coarse,
    judge,
    length_ratios,
    unlike_update,
)
from p2ptrain.proofs.sketches import sketch, unit_exponent_of

SEED, EXPONENT, NUMEL = 11, unit_exponent_of(64.0), 40_000
STEADY = [1.0] * 16


def contributions(steps: Sequence[int] = (16,) * 6) -> list[np.ndarray]:
    """Vectors that share a direction, each with noise of its own, as long as expected."""
    draws = np.random.default_rng(5)
    shared = draws.standard_normal(NUMEL)
    made = []
    for count in steps:
        vector = shared + draws.standard_normal(NUMEL)
        made.append((vector * expected_length([1.0] * count) / 16).astype(np.float32))
    return made


def judged(vectors: Sequence[np.ndarray], steps: Sequence[int] = (16,) * 6) -> list[Judged]:
    return [
        Judged(sketch(vector, SEED, EXPONENT), expected_length([1.0] * count), count)
        for vector, count in zip(vectors, steps, strict=True)
    ]


def broken(vectors: Sequence[np.ndarray]) -> list[tuple[Rule, tuple[int, ...]]]:
    return [(each.rule, each.participants) for each in judge(judged(vectors))]


def test_expected_length_is_the_sum_of_correlated_steps() -> None:
    rates = [0.5, 1.0, 2.0]
    square = sum(
        a * b * 0.9 ** abs(i - j) for i, a in enumerate(rates) for j, b in enumerate(rates)
    )
    assert expected_length(rates) == pytest.approx(square**0.5)
    assert expected_length([3.0]) == 3.0
    assert expected_length([1.0] * 4000) / expected_length([1.0] * 1000) == pytest.approx(2, 0.01)


def test_honest_contributions_break_no_rule() -> None:
    assert broken(contributions()) == []


def test_honest_peers_with_unequal_speeds_break_no_rule() -> None:
    steps = (1, 20, 20, 13, 7, 2)
    assert judge(judged(contributions(steps), steps)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda own, _: 5 * own, [("length", (2,))]),
        (lambda own, _: own / 100, [("length", (2,))]),
        (lambda own, _: 0 * own, [("length", (2,))]),
        (lambda own, _: -own, [("direction", (2,))]),
        (lambda _, other: 1.02 * other, [("twin", (0, 2))]),
    ],
)
def test_lies_about_length_and_direction_are_found(change, expected) -> None:  # type: ignore[no-untyped-def]
    vectors = contributions()
    vectors[2] = change(vectors[2], vectors[0])
    assert broken(vectors) == expected


def test_two_participants_cannot_be_told_apart() -> None:
    one, other, *_ = contributions()
    assert judge(judged([one, 9 * other], (16, 16))) == []


def test_participants_that_all_send_nothing_are_found() -> None:
    nothing = [np.zeros(NUMEL, np.float32)] * 6
    assert {rule for rule, _ in broken(nothing)} == {"length"}
    assert length_ratios(judged(nothing)) == [float("inf")] * 6


def mean_through(
    name: CodecName, vectors: Sequence[np.ndarray], steps: Sequence[int]
) -> np.ndarray:
    """The mean of a chain of peers that add and round in turn, with the codec's usual block."""
    kernels = codec(name, 64 if name == "int4" else 256)
    payload, total = np.empty(kernels.encoded_bytes(NUMEL), np.uint8), np.zeros(NUMEL, np.float32)
    for number, (vector, weight) in enumerate(zip(vectors, steps, strict=True), 1):
        total += np.float32(weight / sum(steps)) * vector
        kernels.quantise(total, payload)
        kernels.dequantise(payload, total)
        assert number <= len(vectors)
    return total


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8"])
def test_true_statements_add_up_to_the_update(name: CodecName) -> None:
    steps = (16, 20, 3, 16, 16, 7)
    vectors = contributions(steps)
    update = sketch(mean_through(name, vectors, steps), SEED, EXPONENT)
    told = judged(vectors, steps)
    assert unlike_update(told, update, name, len(steps)) is None
    told[3] = Judged(2 * told[3].sums, told[3].expected, told[3].weight)
    found = unlike_update(told, update, name, len(steps))
    assert found is not None
    assert found.rule == "sum"
    assert found.value > 1.5 * found.limit
    assert "participant's share" in found.words


def test_int4_is_too_coarse_for_the_rule_about_sums() -> None:
    vectors = contributions()
    update = sketch(mean_through("int4", vectors, (1,) * 6), SEED, EXPONENT)
    assert unlike_update(judged(vectors), update, "int4", 6) is None
    assert is_too_coarse("int4", 6, 4.0)
    assert not is_too_coarse("int8", 6, 4.0)


def test_sum_of_nothing_breaks_no_rule() -> None:
    nothing = judged([np.zeros(NUMEL, np.float32)] * 6)
    assert unlike_update(nothing, nothing[0].sums, "int8", 6) is None


def test_new_trainers_may_be_slow_to_begin() -> None:
    """In a run where the learning rate of a new trainer rises first, its work is short. Neither it
    nor an older one among new ones is odd."""
    vectors = contributions((16,) * 5)
    usual, shortest = expected_length([1.0] * 16), expected_length([0.1] * 16)
    for fresh in ((0,), (0, 1, 2, 3)):
        told = [
            Judged(
                sketch(each * np.float32(0.1) if who in fresh else each, SEED, EXPONENT),
                usual,
                1,
                shortest,
            )
            for who, each in enumerate(vectors)
        ]
        assert judge(told) == []
    told[4] = Judged(sketch(5 * vectors[4], SEED, EXPONENT), usual, 1, shortest)
    assert [each.rule for each in judge(told)] == ["length"]


def test_lengths_are_not_judged_where_they_were_not_measured() -> None:
    vectors = contributions()
    vectors[2] = 5 * vectors[2]
    assert judge(judged(vectors), lengths=False) == []


def test_findings_about_most_participants_accuse_nobody() -> None:
    vectors = contributions()
    vectors[1], vectors[4] = 1.02 * vectors[0], -vectors[4]
    findings = judge(judged(vectors))
    assert accused_by(findings, 6) == (0, 1, 4)
    assert accused_by(findings, 5) == ()
    assert accused_by([], 6) == ()
