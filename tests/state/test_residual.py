"""What rounding lost is owed once its update is committed, and never before."""

from __future__ import annotations

from p2ptrain.state import Residual
from p2ptrain.store import digest_of

ONE, OTHER = digest_of(b"one"), digest_of(b"other")


def lose(residual: Residual, amount: float) -> None:
    residual.begun()
    residual.aside[:] = amount


def test_what_was_lost_in_a_committed_update_is_owed() -> None:
    residual = Residual(3)
    assert residual.owed.tolist() == [0, 0, 0]
    lose(residual, 0.25)
    residual.set_aside(ONE)
    assert residual.owed.tolist() == [0, 0, 0]
    assert residual.committed(ONE)
    assert residual.owed.tolist() == [0.25, 0.25, 0.25]
    residual.close()


def test_an_attempt_that_failed_leaves_nothing_behind() -> None:
    residual = Residual(2)
    lose(residual, 0.5)
    residual.set_aside(ONE)
    lose(residual, 0.75)  # The next attempt: the first can be committed no more.
    assert not residual.committed(ONE)
    residual.set_aside(OTHER)
    assert residual.committed(OTHER)
    assert residual.owed.tolist() == [0.75, 0.75]
    residual.close()


def test_who_took_no_part_goes_on_owing_what_it_owed() -> None:
    residual = Residual(2)
    lose(residual, 1.0)
    residual.set_aside(ONE)
    residual.committed(ONE)
    assert not residual.committed(OTHER)
    assert not residual.committed(ONE)
    assert residual.owed.tolist() == [1.0, 1.0]
    residual.close()
