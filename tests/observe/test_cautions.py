"""A warning to a person says what helps, and where to read more."""

from __future__ import annotations

from p2ptrain.observe.cautions import Caution


def test_caution_in_words_has_its_advice_and_its_code() -> None:
    small = Caution("DISK-LOW", "the disk is small", "make room")
    assert small.words == "the disk is small: make room (p2ptrain explain DISK-LOW)"


def test_caution_without_a_remedy_has_no_advice() -> None:
    assert Caution("BRANCH", "on a branch").words == "on a branch (p2ptrain explain BRANCH)"
