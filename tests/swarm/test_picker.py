"""The picker's rules, one by one, and then as a whole against sources that do their worst."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import Digest
from p2ptrain.swarm import Picker
from p2ptrain.swarm.picker import (
    AGAIN_S,
    AGAIN_S_MAX,
    COPIES_MAX,
    IN_FLIGHT_MAX,
    PATIENCE_MIN_S,
    PATIENCE_UNKNOWN_S,
)

A, B, C, D = (Digest(letter * 64) for letter in "abcd")


def picker_of(lanes, digests, in_flight_max=IN_FLIGHT_MAX):
    picker = Picker(lanes, in_flight_max=in_flight_max)
    picker.want(digests)
    return picker


def proven(lanes, digests, took_s=1.0):
    """The same, and each lane has brought a chunk in so many seconds before now, which is 0."""
    warm = [Digest(f"{number:064x}") for number, _ in enumerate(lanes)]
    picker = picker_of(lanes, warm)
    for lane in lanes:
        digest = picker.next(lane, -took_s)
        assert digest is not None
        assert picker.arrived(lane, digest, 0)
    picker.want(digests)
    return picker


def test_each_chunk_is_asked_of_one_source_in_the_order_wanted():
    picker = proven(["x", "y"], [A, B, C])
    assert [picker.next(lane, 0) for lane in "xyxy"] == [A, B, C, None]


def test_a_source_of_which_nothing_is_known_has_one_request_open():
    picker = picker_of(["x", "y"], [A, B, C])
    assert [picker.next(lane, 0) for lane in "xxyy"] == [A, None, B, None]
    assert picker.arrived("x", A, 1)
    assert picker.next("x", 1) == C


def test_a_manifest_is_short_and_teaches_nothing_of_how_long_a_chunk_takes():
    picker = Picker(["x", "y"])
    picker.want([A], urgent=True)
    assert picker.next("x", 0) == A
    assert picker.arrived("x", A, 0.01)
    picker.want([B, C])
    assert [picker.next("x", 0.01) for _ in range(2)] == [B, None]
    assert picker.reconsider_at("y", 0.01) == 0.01 + PATIENCE_UNKNOWN_S


def test_a_source_has_as_many_requests_open_as_its_rate_is_worth():
    many = [Digest(f"{number:064x}") for number in range(100, 200)]
    for took_s, open_max in ((10.0, 2), (1.0, 2), (0.5, 3), (0.1, 11), (0.01, IN_FLIGHT_MAX)):
        picker = proven(["x"], many, took_s)
        assert sum(picker.next("x", 0) is not None for _ in many) == open_max


def test_a_source_that_lacks_what_it_is_asked_for_has_one_request_open_until_it_brings_some():
    picker = proven(["x", "y"], [A, B, C, D], took_s=0.25)
    assert [picker.next("x", 0) for _ in range(2)] == [A, B]
    picker.lacks("x", A, 1)
    assert picker.next("x", 1) is None
    picker.lacks("x", B, 1)
    assert [picker.next("x", 1) for _ in range(2)] == [C, None]
    assert picker.arrived("x", C, 2)
    assert picker.next("x", 2) == D


def test_what_one_would_bring_much_later_is_asked_of_a_faster_one_that_has_nothing_else_to_do():
    picker = Picker(["fast", "slow"])
    picker.want([A, B])
    assert [picker.next("slow", 0), picker.next("fast", 0)] == [A, B]
    assert picker.arrived("fast", B, 1)
    assert picker.arrived("slow", A, 10)
    picker.want([C, D])
    assert [picker.next("slow", 10), picker.next("slow", 10)] == [C, D]
    # The last one in the slow source's queue is the one to relieve it of.
    assert picker.next("fast", 10) == D
    assert picker.arrived("fast", D, 11)
    assert picker.next("fast", 11) == C
    assert picker.next("fast", 11) is None


def test_what_another_will_bring_about_as_soon_is_left_to_it():
    picker = proven(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 0) is None


def test_it_is_done_when_all_has_arrived():
    picker = picker_of(["x"], [A])
    assert not picker.done
    picker.next("x", 0)
    assert not picker.done
    picker.arrived("x", A, 1)
    assert (picker.done, picker.stuck, picker.left) == (True, False, 0)


def test_more_can_be_wanted_later_and_nothing_twice():
    picker = proven(["x"], [A])
    picker.next("x", 0)
    picker.want([A, B, B])
    assert picker.left == 2
    assert picker.next("x", 0) == B
    assert picker.next("x", 0) is None


def test_a_chunk_that_one_source_lacks_is_asked_of_another_and_first():
    picker = proven(["x", "y"], [A, B, C, D])
    assert picker.next("x", 0) == A
    picker.lacks("x", A, 0)
    assert picker.next("x", 0) == B
    assert picker.next("y", 0) == A


def test_the_rarest_chunk_goes_first():
    picker = picker_of(["x", "y", "z"], [A, B])
    for lane, digest in (("x", A), ("x", B), ("y", B)):
        picker.lacks_too(lane, digest)
    assert picker.next("z", 0) == B
    assert picker.next("y", 0) == A


def test_what_a_dropped_source_owed_is_asked_of_the_others():
    picker = picker_of(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 0) is None  # Nothing is known that speaks for asking twice.
    picker.drop("x")
    assert picker.next("x", 0) is None
    assert picker.next("y", 0) == A


def test_a_chunk_that_a_dropped_source_still_brings_counts_once():
    picker = proven(["x", "y"], [A, B])
    assert [picker.next("x", 0), picker.next("x", 0)] == [A, B]
    picker.drop("x")
    assert [picker.next("y", 0), picker.next("y", 0)] == [A, B]
    assert picker.arrived("x", A, 1)
    assert not picker.arrived("y", A, 2)
    assert picker.left == 1
    assert picker.arrived("y", B, 3)
    assert picker.done


def test_a_late_chunk_is_asked_of_another_source_and_the_first_copy_counts():
    picker = picker_of(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 1) is None
    assert picker.reconsider_at("y", 1) == PATIENCE_UNKNOWN_S
    assert picker.next("y", PATIENCE_UNKNOWN_S) == A
    assert picker.arrived("y", A, 6)
    assert picker.done
    assert not picker.arrived("x", A, 7)


def test_patience_is_learned_from_what_chunks_usually_take():
    picker = picker_of(["x", "y"], [A, B])
    picker.next("x", 0)
    picker.arrived("x", A, 10)
    picker.next("x", 10)
    assert picker.reconsider_at("y", 10) == 10 + 30
    assert picker.next("y", 39) is None
    assert picker.next("y", 40) == B


def test_an_urgent_chunk_is_late_soon():
    picker = Picker(["x", "y"])
    picker.want([A], urgent=True)
    picker.next("x", 0)
    assert picker.reconsider_at("y", 0) == PATIENCE_MIN_S
    assert picker.next("y", PATIENCE_MIN_S) == A


def test_a_late_chunk_is_asked_of_few_soon_and_of_all_in_time():
    lanes = [str(number) for number in range(8)]
    picker = picker_of(lanes, [A])
    asked_at = []
    for at in (PATIENCE_UNKNOWN_S * number for number in range(64)):
        asked_at += [at / PATIENCE_UNKNOWN_S for lane in lanes if picker.next(lane, at)]
    assert asked_at == [0, 1, 2, 3, 5, 9, 17, 33]
    assert COPIES_MAX == 4


def test_what_is_overdue_is_no_reason_to_ask_again_and_again():
    picker = picker_of(["x", "y"], [A, B])
    assert [picker.next("x", 0), picker.next("y", 1)] == [A, B]
    assert picker.reconsider_at("y", PATIENCE_UNKNOWN_S - 1) == PATIENCE_UNKNOWN_S
    assert picker.next("y", PATIENCE_UNKNOWN_S) is None
    assert picker.reconsider_at("y", PATIENCE_UNKNOWN_S) is None


def test_what_a_source_lacks_it_is_not_asked_for_because_it_is_overdue():
    picker = picker_of(["x", "y"], [A])
    picker.lacks_too("y", A)
    assert picker.next("x", 0) == A
    assert picker.reconsider_at("y", 0) is None
    assert picker.next("y", PATIENCE_UNKNOWN_S) is None


def test_what_a_source_has_lacked_it_may_have_later_but_what_all_have_lacked_nobody_has():
    picker = picker_of(["x", "y"], [A])
    for lane in "xy":
        assert picker.next(lane, 0) == A
        picker.lacks(lane, A, 0)
    assert picker.stuck
    assert picker.next("x", 1000) is None
    picker.want([B])
    assert picker.next("x", 1000) == B
    assert picker.next("y", 1000) == A
    picker.lacks("y", A, 1000)
    picker.lacks("x", B, 1000)
    picker.drop("x")
    assert picker.next("y", 1001) == B
    picker.lacks("y", B, 1001)
    assert picker.stuck


def test_what_a_source_lacks_it_is_asked_for_in_turn_and_ever_later():
    picker = picker_of(["seed", "x"], [A, B, C, D])
    now, asked = 0.0, []
    assert picker.next("seed", now) == A
    for _ in range(9):
        digest = picker.next("x", now)
        if digest is None:
            at = picker.reconsider_at("x", now)
            assert at is not None
            assert at < now + AGAIN_S_MAX
            assert picker.next("x", now + (at - now) / 2) is None
            now = at
            digest = picker.next("x", now)
        picker.lacks("x", digest, now)
        asked.append((digest, round(now / AGAIN_S / 2)))
    assert asked == [
        (B, 0), (C, 0), (D, 0), (B, 1), (C, 3), (D, 6), (B, 10), (C, 15), (D, 21),
    ]  # fmt: skip
    assert picker.next("x", now + AGAIN_S_MAX) == B
    assert picker.arrived("x", B, now + AGAIN_S_MAX)
    assert picker.next("x", now + AGAIN_S_MAX) == C


def test_a_pick_takes_no_longer_where_many_chunks_are_lacked_by_some():
    def lines_of_a_pick(chunks: int) -> int:
        picker = picker_of(range(17), [Digest(f"{number:064x}") for number in range(chunks)])
        for lane in range(1, 17):
            for number in range(chunks):
                picker.lacks_too(lane, Digest(f"{number:064x}"))
        lines = 0

        def count(frame, event, _):
            nonlocal lines
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        picked = [picker.next(lane, 0) for lane in (1, 0)]
        sys.settrace(before)
        assert None not in picked
        return lines

    assert lines_of_a_pick(2000) == lines_of_a_pick(20) < 500


def test_nothing_is_asked_twice_of_the_same_source():
    picker = picker_of(["x"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("x", 1000) is None


def test_a_source_that_comes_later_takes_its_part():
    picker = proven(["x"], [A, B, C])
    assert picker.next("x", 0) == A
    picker.add("y")
    assert picker.next("y", 0) == B
    picker.drop("y")
    assert picker.next("y", 0) is None
    picker.add("y")
    assert picker.next("y", 0) in (B, C)


def test_it_is_stuck_when_nobody_that_is_left_may_have_what_is_wanted():
    picker = picker_of(["x", "y"], [A, B])
    for lane in "xy":
        assert picker.next(lane, 0) == A
        picker.lacks(lane, A, 0)
        assert not picker.stuck
    assert list(picker.hopeless) == [A]
    assert picker.next("x", 0) == B
    assert not picker.stuck
    picker.drop("x")
    assert not picker.stuck
    picker.drop("y")
    assert picker.stuck
    assert set(picker.hopeless) == {A, B}


def test_without_sources_it_is_stuck_at_once():
    assert picker_of([], [A]).stuck
    assert not picker_of([], []).stuck


SOURCES = st.dictionaries(
    st.sampled_from("vwxyz"),
    st.tuples(st.sets(st.integers(0, 11)), st.one_of(st.none(), st.integers(0, 8))),
    max_size=5,
)


@given(SOURCES, st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_all_that_a_lasting_source_has_arrives_and_every_rule_holds(
    sources, count, in_flight_max, rng
):
    """`sources`: for each lane what it holds, and after how many requests it dies."""
    digests = [Digest(f"{number:064x}") for number in range(count)]
    picker = picker_of(sources, digests, in_flight_max)
    asked = {lane: [] for lane in sources}
    requests = dict.fromkeys(sources, 0)
    arrived = set()
    now = 0.0
    while not (picker.done or picker.stuck):
        now += 10
        lane = rng.choice(sorted(picker.lanes))
        held, dies_after = sources[lane]
        while (digest := picker.next(lane, now)) is not None:
            assert digest not in asked[lane]
            assert digest not in arrived
            asked[lane].append(digest)
            requests[lane] += 1
        assert len(asked[lane]) <= in_flight_max
        if dies_after is not None and requests[lane] > dies_after:
            picker.drop(lane)
            asked[lane].clear()
        elif asked[lane]:
            digest = asked[lane].pop(0)
            if int(digest, 16) not in held:
                picker.lacks(lane, digest, now)
            elif picker.arrived(lane, digest, now):
                assert digest not in arrived
                arrived.add(digest)
    lasting = [held for held, dies_after in sources.values() if dies_after is None]
    assert arrived >= {d for d in digests if any(int(d, 16) in held for held in lasting)}
    assert picker.done == (arrived == set(digests))
