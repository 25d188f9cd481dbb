"""A node remembers failed attempts, and leaves out the most doubted peers (SPEC.md S13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.policy.blame import HALF_LIFE, LEFT_OUT_MAX, LEFT_OUT_REFUSED, FailureMemory
from p2ptrain.testing.ledgers import peers

A, B, C, D, E = ALL = peers("a b c d e")
THREE = ALL[:3]


def attempts(
    memory: FailureMemory,
    reports: Mapping[PeerId, Iterable[PeerId]],
    taking: Iterable[PeerId] = ALL,
    times: int = 1,
) -> None:
    for _ in range(times):
        memory.opened(tuple(taking), ALL, ALL)
        memory.failed(tuple(taking), reports)


def commits(memory: FailureMemory, times: int, taking: Iterable[PeerId] = ALL) -> None:
    for _ in range(times):
        memory.opened(tuple(taking), ALL, ALL)
        memory.committed(tuple(taking), ALL)


def failing_steps(
    memory: FailureMemory, reports: Mapping[PeerId, Iterable[PeerId]], times: int
) -> None:
    """Let outer steps pass that fail once and then succeed with all peers."""
    for _ in range(times):
        attempts(memory, reports)
        commits(memory, 1)


def out(memory: FailureMemory, most: int = 1, able: Iterable[PeerId] = ALL) -> str:
    return "".join(sorted(memory.sitting_out(frozenset(able), most)))


def test_peer_that_most_others_accuse_sits_out_alone() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [E], B: [E], E: [A]})
    assert out(memory) == "e"
    assert out(memory, most=5) == "e", (
        "only e must sit out, since it is involved in every accusation"
    )


def test_peer_that_accuses_several_is_doubted_most() -> None:
    memory = FailureMemory()
    attempts(memory, {E: [A, B]})
    assert out(memory, most=5) == "e"


def test_two_peers_that_accuse_each_other_take_turns_sitting_out() -> None:
    """A liar that accuses an honest peer is left out as often as that peer."""
    memory, left_out = FailureMemory(), ""
    failing_steps(memory, {E: [A]}, times=2)
    for _ in range(4):
        left_out += (who := out(memory))
        commits(memory, 1, [peer for peer in ALL if peer != who])
    assert left_out in ("aeae", "eaea")


def test_outsiders_and_repeated_accusations_do_not_count() -> None:
    memory = FailureMemory()
    assert memory.failure(THREE, {D: [A], A: [E], B: []}) is None
    once, both = memory.failure(THREE, {A: [B]}), memory.failure(THREE, {A: [B, B], B: [A]})
    assert once is not None
    assert both is not None
    assert once.doubts == both.doubts == {frozenset({A, B}): 1.0}


def test_report_accuses_at_most_four_peers() -> None:
    crowd = peers("a b c d e f g h")
    failure = FailureMemory().failure(crowd, {crowd[0]: crowd[1:]})
    assert failure is not None
    assert len(failure.doubts) == 4


def test_peer_that_accuses_itself_gets_half_of_the_doubt() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [A, B]})
    assert out(memory, most=5) == ""
    attempts(memory, {A: [A, B]})
    assert out(memory, most=5) == "a"


def test_single_failure_is_forgiven_after_one_commit_but_two_are_not() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e"
    commits(memory, HALF_LIFE - 1, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == "", "by now two failures must count less than one"


def test_failed_attempts_of_one_step_count_once_in_later_steps() -> None:
    """They often have one cause. A network outage of one step is not worth eight averages."""
    memory = FailureMemory()
    attempts(memory, {A: [E], B: [E]}, times=3)
    attempts(memory, {E: [E, A]})
    assert memory.against(E, frozenset(ALL)) == 3.5
    commits(memory, 1, ALL[:4])
    assert 0.9 < memory.against(E, frozenset(ALL)) < 1.0
    assert out(memory) == ""


def test_expensive_failures_are_remembered_for_longer() -> None:
    memory, half_life = FailureMemory(), 5 * HALF_LIFE
    for _ in range(2):
        memory.opened(ALL, ALL, ALL)
        memory.failed(ALL, {A: [E], B: [E]}, lost_steps=half_life / 20)
        commits(memory, 1, ALL[:4])
    commits(memory, half_life - 2, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""


def test_expensive_failures_without_accusations_are_remembered_for_longer() -> None:
    memory, half_life = FailureMemory(), 5 * HALF_LIFE
    for _ in range(2):
        memory.opened(ALL, ALL, ALL)
        memory.failed(ALL, {}, lost_steps=half_life / 20)
        commits(memory, 1, ALL[:4])
    commits(memory, half_life - 2, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 2, ALL[:4])
    assert out(memory) == ""


def test_voter_allows_a_longer_absence_after_an_expensive_failure() -> None:
    memory = FailureMemory()
    memory.opened(ALL, ALL, ALL)
    memory.failed(ALL, {A: [E]}, lost_steps=2.0)
    assert {peer: memory.refused_after(peer) for peer in ALL} == {
        A: 2 * (2 * 40 - 1) + 1,
        B: LEFT_OUT_REFUSED,
        C: LEFT_OUT_REFUSED,
        D: LEFT_OUT_REFUSED,
        E: 2 * (2 * 40 - 1) + 1,
    }


def test_skipped_steps_do_not_reduce_the_doubt() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [E], B: [E]})
    for _ in range(100):
        memory.skipped()
    assert out(memory) == "e"


def test_many_accusers_in_one_failure_count_no_more_than_one() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [E], B: [E], C: [E], D: [E]})
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""


def test_doubt_does_not_count_while_one_of_its_peers_is_absent() -> None:
    memory = FailureMemory()
    attempts(memory, {A: [E]}, times=3)
    assert out(memory, able=ALL[:4]) == out(memory, able=ALL[1:]) == ""


def test_peers_absent_from_the_successful_attempt_are_doubted() -> None:
    memory = FailureMemory()
    attempts(memory, {}, times=2)
    commits(memory, 1, (A, B, C))
    assert out(memory) == "", "the failures may have been accidents"
    attempts(memory, {})
    assert out(memory) == "d", "d was absent from the successful reduce, so it is suspected"
    commits(memory, 1, (A, B, D))
    assert out(memory) == "e"


def test_failures_without_accusations_are_forgotten_after_a_skip() -> None:
    memory = FailureMemory()
    attempts(memory, {}, times=2)
    memory.skipped()
    commits(memory, 1, (A, B, C))
    assert list(memory.failures) == []


def test_nobody_is_left_out_longer_than_the_limit() -> None:
    memory = FailureMemory()
    failing_steps(memory, {A: [E], B: [E]}, times=30)
    commits(memory, LEFT_OUT_MAX - 1, ALL[:4])
    assert out(memory) == "e"
    commits(memory, 1, ALL[:4])
    assert out(memory) == ""
    attempts(memory, {A: [E], B: [E]})
    assert out(memory) == "e", "e has taken part again, so the count restarts"


REPORTS = st.dictionaries(st.sampled_from(ALL), st.lists(st.sampled_from(ALL), max_size=5))


@settings(max_examples=60)
@given(st.lists(st.tuples(REPORTS, st.booleans()), max_size=20), st.integers(0, 3))
def test_number_of_peers_that_sit_out_is_limited(
    steps: list[tuple[dict[PeerId, list[PeerId]], bool]], most: int
) -> None:
    memory = FailureMemory()
    for reports, committed in steps:
        attempts(memory, reports)
        chosen = memory.sitting_out(frozenset(ALL), most)
        assert len(chosen) <= most
        if committed:
            commits(memory, 1, [peer for peer in ALL if peer not in chosen])
