"""When a node asks members whether they can connect to it, and which members it asks."""

from __future__ import annotations

import random

from p2ptrain.ids import PeerId
from p2ptrain.peers.reach_questions import (
    FAILED_AGAIN_S,
    OVERDUE_S,
    PEER_AGAIN_S,
    ROUND_AGAIN_S,
    ROUND_EVERY_S,
    SPOT_CHECK_EVERY_S,
    Askable,
    ReachQuestions,
)


def members(*names: str) -> list[Askable]:
    """Return members with these names, each at its own site."""
    return [Askable(PeerId(name), f"192.0.2.{ord(name[0])}") for name in names]


def draw() -> random.Random:
    return random.Random(1)


def test_three_members_are_asked_at_the_start_and_every_ten_minutes() -> None:
    questions, known = ReachQuestions(), members("a", "b", "c", "d", "e")
    asked = questions.choose(known, 0.0, draw())
    assert len(asked) == len(set(asked)) == 3
    for peer in asked:
        questions.note_answer(peer)
    assert questions.choose(known, ROUND_EVERY_S - 1, draw()) == []
    assert len(questions.choose(known, ROUND_EVERY_S, draw())) == 3


def test_two_members_at_one_site_are_not_both_asked() -> None:
    questions = ReachQuestions()
    near = [Askable(PeerId(name), "192.0.2.1") for name in ("a", "b")]
    asked = questions.choose([*near, *members("c")], 0.0, draw())
    assert sorted(asked) in (["a", "c"], ["b", "c"])


def test_members_that_connect_later_are_asked_in_the_same_round() -> None:
    questions = ReachQuestions()
    assert questions.choose([], 0.0, draw()) == []
    assert questions.choose(members("a"), 1.0, draw()) == ["a"]
    assert questions.choose(members("a"), 2.0, draw()) == []
    assert sorted(questions.choose(members("a", "b", "c", "d"), 3.0, draw())) != ["a"]
    assert questions.choose(members("a", "b", "c", "d"), 4.0, draw()) == []


def test_silent_member_is_replaced_at_once_and_asked_again_soon() -> None:
    questions, known = ReachQuestions(), members("a", "b", "c")
    assert sorted(questions.choose(known, 0.0, draw())) == ["a", "b", "c"]
    questions.note_answer(PeerId("a"))
    questions.note_failure(PeerId("b"))
    assert questions.choose([*known, *members("d")], 1.0, draw()) == ["d"]
    questions.note_failure(PeerId("d"))
    assert questions.choose(known, 2.0, draw()) == []
    assert questions.choose(known, FAILED_AGAIN_S, draw()) == ["b"]
    questions.note_failure(PeerId("b"))
    assert questions.choose(known, FAILED_AGAIN_S + 1, draw()) == []
    assert questions.choose(known, 2 * FAILED_AGAIN_S, draw()) == ["b"]


def test_overdue_member_is_replaced_but_its_late_answer_counts() -> None:
    questions, known = ReachQuestions(), members("a", "b", "c", "d", "e")
    first = questions.choose(known, 0.0, draw())
    for peer in first[:2]:
        questions.note_answer(peer)
    assert questions.choose(known, OVERDUE_S - 1, draw()) == []
    (instead,) = questions.choose(known, OVERDUE_S, draw())
    assert instead not in first
    questions.note_answer(first[2])
    assert questions.choose(known, 2 * OVERDUE_S, draw()) == [], "three sites have answered"


def test_spot_check_that_fails_is_made_with_another_member() -> None:
    questions, known = ReachQuestions(), members("a", "b", "c")
    for peer in questions.choose(known, 0.0, draw()):
        questions.note_answer(peer)
    (first,) = questions.choose_spot_check(known, SPOT_CHECK_EVERY_S, draw())
    questions.note_failure(first)
    (second,) = questions.choose_spot_check(known, SPOT_CHECK_EVERY_S + 1, draw())
    assert second != first
    questions.note_answer(second)
    assert questions.choose_spot_check(known, SPOT_CHECK_EVERY_S + 2, draw()) == []


def test_change_begins_a_new_round_but_no_member_is_asked_twice_in_a_minute() -> None:
    questions, known = ReachQuestions(), members("a", "b", "c", "d", "e")
    first = questions.choose(known, 0.0, draw())
    for peer in first:
        questions.note_answer(peer)
    questions.ask_again()
    assert questions.choose(known, ROUND_AGAIN_S - 1, draw()) == []
    second = questions.choose(known, ROUND_AGAIN_S, draw())
    for peer in second:
        questions.note_answer(peer)
    assert sorted([*first, *second]) == ["a", "b", "c", "d", "e"]
    third = questions.choose(known, PEER_AGAIN_S, draw())
    assert len(third) == 1
    assert third[0] in first, "the round of two members lacks a third site"


def test_node_that_lost_all_members_that_answered_asks_the_next_ones() -> None:
    questions = ReachQuestions()
    for peer in questions.choose(members("a", "b"), 0.0, draw()):
        questions.note_answer(peer)
    assert questions.choose([], 100.0, draw()) == []
    assert questions.choose(members("b"), 101.0, draw()) == [], "this member stayed"
    assert questions.choose(members("c", "d"), 102.0, draw()) != []


def test_choice_depends_on_the_given_randomness_and_not_on_the_ids() -> None:
    known = members("a", "b", "c", "d", "e", "f")
    first = {ReachQuestions().choose(known, 0.0, random.Random(seed))[0] for seed in range(100)}
    assert first == {each.peer for each in known}
