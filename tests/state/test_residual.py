"""A rounding loss becomes the residual when its reduce is committed, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.state import Residual


def lose(
    residual: Residual, amount: float, *, step: int = 0, attempt: int = 0, peers: int = 1
) -> None:
    residual.begun(step, attempt, peers)
    residual.aside[:] = amount


def test_loss_in_a_committed_reduce_becomes_the_residual() -> None:
    residual = Residual(3)
    assert residual.owed.tolist() == [0, 0, 0]
    lose(residual, 0.25)
    assert residual.owed.tolist() == [0, 0, 0]
    assert residual.open_step == 0
    residual.ended(0)
    assert residual.owed.tolist() == [0.25, 0.25, 0.25]
    assert residual.open_step is None
    residual.close()


def test_loss_of_a_failed_attempt_is_dropped() -> None:
    residual = Residual(2)
    lose(residual, 0.5)
    lose(residual, 0.75, attempt=1)  # The first attempt can no longer be committed.
    residual.ended(1)
    assert residual.owed.tolist() == [0.75, 0.75]


@pytest.mark.parametrize("committed", [None, 0, 2])
def test_peer_outside_the_committed_attempt_keeps_its_residual(committed: int | None) -> None:
    residual = Residual(2)
    lose(residual, 1.0)
    residual.ended(0)
    lose(residual, 2.0, step=1, attempt=1)
    residual.ended(committed)
    assert residual.owed.tolist() == [1.0, 1.0]


def test_parts_that_were_not_rounded_before_an_abort_keep_their_residual() -> None:
    residual = Residual(3)
    lose(residual, 1.0)
    residual.ended(0)
    residual.begun(1, 0, 1)
    residual.aside[1] = 0.25
    residual.cut_short(1.0)
    residual.ended(0)
    assert residual.owed.tolist() == [1.0, 0.25, 1.0]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1.01, -1.01])
def test_loss_too_large_for_a_rounding_error_is_dropped(number: float) -> None:
    residual = Residual(3)
    lose(residual, 1.0)
    residual.aside[2] = number
    residual.cut_short(1.0)
    residual.ended(0)
    assert residual.owed.tolist() == [0, 0, 0]


def test_residual_is_rescaled_when_the_number_of_peers_changes() -> None:
    residual = Residual(2)
    lose(residual, 0.3, peers=3)
    residual.ended(0)
    before = residual.owed.tobytes()
    residual.begun(1, 0, 3)
    assert residual.owed.tobytes() == before
    residual.begun(1, 1, 6)
    assert residual.owed == pytest.approx(0.6)
    assert residual.peers == 6
    residual.ended(None)
    assert residual.owed == pytest.approx(0.6)


def test_residual_is_zero_if_the_committed_attempt_is_unknown() -> None:
    residual = Residual(2)
    lose(residual, 1.0)
    residual.ended(0)
    lose(residual, 2.0, step=1)
    residual.forget()
    assert (residual.owed.tolist(), residual.open_step) == ([0, 0], None)
