"""Outcomes accuse only contributions that are unlike the others, and only if the test is clear."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.proofs.outcome import Judgement, Outcome, RowLosses, judge, outcome_of

USUAL = [Outcome(0.10 + 0.01 * each, 0.01, -0.02 + 0.001 * each, 0.002) for each in range(6)]


def with_liar(liar: Outcome) -> Judgement:
    return judge([*USUAL[:3], liar, *USUAL[4:]], 3)


def test_outcome_is_a_difference_on_the_same_rows() -> None:
    draws = np.random.default_rng(0)
    hard = draws.uniform(1, 9, 400)
    losses = RowLosses(hard, hard - 0.3, hard, hard - 0.1, hard + 0.05)
    found = outcome_of(losses)
    assert found.memory == pytest.approx(0.2)
    assert found.harm == pytest.approx(0.05)
    assert max(found.memory_error, found.harm_error) < 1e-9


def test_errors_shrink_with_the_number_of_rows() -> None:
    draws = np.random.default_rng(1)

    def found(rows: int) -> Outcome:
        own, other, quarter = (draws.normal(0, 1, rows) for _ in range(3))
        zeros = np.zeros(rows)
        return outcome_of(RowLosses(zeros, own, zeros, other, quarter))

    few, many = found(100), found(10_000)
    assert few.harm_error == pytest.approx(0.1, 0.3)
    assert few.memory_error / many.memory_error == pytest.approx(10, 0.3)


def test_usual_contributions_are_not_suspect() -> None:
    assert [judge(USUAL, each).suspect for each in range(6)] == [""] * 6


def test_contribution_without_memory_is_suspect() -> None:
    found = with_liar(Outcome(0.0, 0.01, -0.02, 0.002))
    assert (found.suspect, found.has_power) == ("memory", True)
    assert "the minimum is 0.06" in found.words


def test_memory_is_not_judged_without_power() -> None:
    unclear = [Outcome(0.02, 0.01, -0.02, 0.002)] * 5
    assert judge([*unclear, Outcome(0.0, 0.01, -0.02, 0.002)], 5) == Judgement(
        "", False, "the usual memory of 0.02 is within its error"
    )


def test_unclear_lack_of_memory_is_not_suspect() -> None:
    assert with_liar(Outcome(0.04, 0.02, -0.02, 0.002)).suspect == ""


def test_harm_beyond_that_of_others_is_suspect() -> None:
    assert with_liar(Outcome(0.1, 0.01, 0.05, 0.002)).suspect == "harm"
    assert with_liar(Outcome(0.1, 0.01, 0.05, 0.02)).suspect == "", "within its error"
    assert with_liar(Outcome(0.1, 0.01, -0.001, 0.0001)).suspect == "", "it lowers the loss"


def test_harm_that_all_do_is_not_suspect() -> None:
    late = [Outcome(0.1, 0.01, 0.03 + 0.002 * each, 0.002) for each in range(6)]
    assert [judge(late, each).suspect for each in range(6)] == [""] * 6


def test_losses_that_are_not_finite_are_harm() -> None:
    assert with_liar(Outcome(float("nan"), 0.01, 0.0, 0.01)).suspect == "harm"
    assert with_liar(Outcome(0.1, 0.01, float("inf"), float("nan"))).suspect == "harm"


def test_two_contributions_cannot_be_compared() -> None:
    liar = Outcome(-9.0, 0.01, 9.0, 0.01)
    assert judge([USUAL[0], liar], 1) == Judgement(
        "", False, "there are too few contributions to compare with"
    )


def test_losses_of_different_rows_are_refused() -> None:
    one, two = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError):
        RowLosses(one, two, one, one, one)
    with pytest.raises(ValueError):
        RowLosses(one, one, one[:1], one[:1], one[:1])
