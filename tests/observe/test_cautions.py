"""What a person is warned of says what helps, and where to read more."""

from __future__ import annotations

from p2ptrain.observe.cautions import Caution


def test_a_caution_in_words_has_its_advice_and_its_code() -> None:
    small = Caution("DISK-LOW", "the disk is small", "make room")
    assert small.words == "the disk is small: make room (p2ptrain explain DISK-LOW)"


def test_where_nothing_is_to_be_done_nothing_is_advised() -> None:
    assert Caution("BRANCH", "on a branch").words == "on a branch (p2ptrain explain BRANCH)"
