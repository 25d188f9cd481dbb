"""A warning says what to do about it, and where to read more."""

from __future__ import annotations

from p2ptrain.observe.cautions import Caution


def test_warning_is_shown_with_its_advice_and_its_code() -> None:
    small = Caution("DISK-LOW", "the disk is small", "make room")
    assert small.words == "the disk is small: make room (p2ptrain explain DISK-LOW)"


def test_warning_without_a_remedy_has_no_advice() -> None:
    assert Caution("BRANCH", "on a branch").words == "on a branch (p2ptrain explain BRANCH)"
