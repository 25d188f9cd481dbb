"""The ledger remembers failed attempts, and the most doubted peers sit out (SPEC.md S13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.policy.blame import HALF_LIFE, LEFT_OUT_MAX, LEFT_OUT_REFUSED, Memory
from p2ptrain.testing.ledgers import peers

A, B, C, D, E = ALL = peers("a b c d e")
THREE = ALL[:3]


def attempts(
    memory: Memory,
    reports: Mapping[PeerId, Iterable[PeerId]],
    taking: Iterable[PeerId] = ALL,
    times: int = 1,
) -> None:
    for _ in range(times):
        memory.opened(tuple(taking), ALL, ALL)
        memory.failed(tuple(taking), reports)


def commits(memory: Memory, times: int, taking: Iterable[PeerId] = ALL) -> None:
    for _ in range(times):
        memory.opened(tuple(taking), ALL, ALL)
        memory.committed(tuple(taking), ALL)


def out(memory: Memory, most: int = 1, able: Iterable[PeerId] = ALL) -> str:
    return "".join(sorted(memory.sitting_out(frozenset(able), most)))


def test_the_most_accused_sits_out_and_its_accusers_do_not() -> None:
    memory = Memory()
    attempts(memory, {A: [E], B: [E], E: [A]})
    assert out(memory) == "e"
    assert out(memory, most=5) == "e", "its absence explains all that was said"


def test_a_peer_that_accuses_several_is_doubted_more_than_they_are() -> None:
    memory = Memory()
    attempts(memory, {E: [A, B]})
    assert out(memory, most=5) == "e"


def test_one_word_against_another_makes_both_take_turns() -> None:
    """What a liar gains by accusing an honest peer: it is left out as often."""
    memory, left_out = Memory(), ""
    attempts(memory, {E: [A]}, times=2)
    for _ in range(4):
        left_out += (who := out(memory))
        commits(memory, 1, [peer for peer in ALL if peer != who])
    assert left_out in ("aeae", "eaea")


def test_words_of_others_about_others_and_twice_count_for_nothing() -> None:
    memory = Memory()
    assert memory.failure(THREE, {D: [A], A: [E], B: []}) is None
    once, both = memory.failure(THREE, {A: [B]}), memory.failure(THREE, {A: [B, B], B: [A]})
    assert once is not None
    assert both is not None
    assert once.doubts == both.doubts == (frozenset({A, B}),)


def test_a_report_accuses_four_at_most() -> None:
    crowd = peers("a b c d e f g h")
    failure = Memory().failure(crowd, {crowd[0]: crowd[1:]})
    assert failure is not None
    assert len(failure.doubts) == 4


def test_a_peer_that_accuses_itself_is_doubted_alone_and_half_as_much() -> None:
    memory = Memory()
    attempts(memory, {A: [A, B]})
    assert out(memory, most=5) == ""
    attempts(memory, {A: [A, B]})
    assert out(memory, most=5) == "a"


def test_one_failure_is_forgiven_after_the_next_commit_and_two_are_not() -> None:
    memory = Memory()
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e"
    commits(memory, HALF_LIFE - 1, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == "", "two failures weigh less than one by now"


def test_expensive_failures_are_remembered_for_longer() -> None:
    memory, half_life = Memory(), 5 * HALF_LIFE
    for _ in range(2):
        memory.opened(ALL, ALL, ALL)
        memory.failed(ALL, {A: [E], B: [E]}, lost_steps=half_life / 20)
        commits(memory, 1, ALL[:4])
    commits(memory, half_life - 2, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""


def test_expensive_failures_without_an_accusation_are_remembered_for_longer() -> None:
    memory, half_life = Memory(), 5 * HALF_LIFE
    for _ in range(2):
        memory.opened(ALL, ALL, ALL)
        memory.failed(ALL, {}, lost_steps=half_life / 20)
        commits(memory, 1, ALL[:4])
    commits(memory, half_life - 2, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 2, ALL[:4])
    assert out(memory) == ""


def test_a_voter_allows_a_longer_absence_after_an_expensive_failure() -> None:
    memory = Memory()
    memory.opened(ALL, ALL, ALL)
    memory.failed(ALL, {A: [E]}, lost_steps=2.0)
    assert {peer: memory.refused_after(peer) for peer in ALL} == {
        A: 2 * (2 * 40 - 1) + 1,
        B: LEFT_OUT_REFUSED,
        C: LEFT_OUT_REFUSED,
        D: LEFT_OUT_REFUSED,
        E: 2 * (2 * 40 - 1) + 1,
    }


def test_skipped_steps_forgive_nobody() -> None:
    memory = Memory()
    attempts(memory, {A: [E], B: [E]})
    for _ in range(100):
        memory.skipped()
    assert out(memory) == "e"


def test_many_accusers_of_one_failure_weigh_no_more_than_one() -> None:
    memory = Memory()
    attempts(memory, {A: [E], B: [E], C: [E], D: [E]})
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""


def test_a_doubt_is_explained_by_the_absence_of_one_of_both() -> None:
    memory = Memory()
    attempts(memory, {A: [E]}, times=3)
    assert out(memory, able=ALL[:4]) == out(memory, able=ALL[1:]) == ""


def test_without_accusations_those_are_doubted_whose_absence_helped() -> None:
    memory = Memory()
    attempts(memory, {}, times=2)
    commits(memory, 1, (A, B, C))
    assert out(memory) == "", "it may have been an accident"
    attempts(memory, {})
    assert out(memory) == "d", "but nothing else tells, now that it fails again"
    commits(memory, 1, (A, B, D))
    assert out(memory) == "e"


def test_a_skipped_step_tells_nothing_of_who_was_missing() -> None:
    memory = Memory()
    attempts(memory, {}, times=2)
    memory.skipped()
    commits(memory, 1, (A, B, C))
    assert list(memory.failures) == []


def test_nobody_is_left_out_for_more_than_so_many_commits() -> None:
    memory = Memory()
    attempts(memory, {A: [E], B: [E]}, times=30)
    commits(memory, LEFT_OUT_MAX - 1, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e", "it had its chance"


REPORTS = st.dictionaries(st.sampled_from(ALL), st.lists(st.sampled_from(ALL), max_size=5))


@settings(max_examples=60)
@given(st.lists(st.tuples(REPORTS, st.booleans()), max_size=20), st.integers(0, 3))
def test_never_more_sit_out_than_may(steps: list, most: int) -> None:
    memory = Memory()
    for reports, committed in steps:
        attempts(memory, reports)
        chosen = memory.sitting_out(frozenset(ALL), most)
        assert len(chosen) <= most
        if committed:
            commits(memory, 1, [peer for peer in ALL if peer not in chosen])
