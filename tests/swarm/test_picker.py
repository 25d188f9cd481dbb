"""The picker's rules one by one, and then all together with difficult sources."""

from __future__ import annotations

import random
import sys
from collections.abc import Hashable, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import Digest
from p2ptrain.swarm import Picker
from p2ptrain.swarm.patience import PATIENCE_MIN_S, PATIENCE_UNKNOWN_S
from p2ptrain.swarm.picker import (
    AGAIN_S,
    AGAIN_S_MAX,
    COPIES_MAX,
    IN_FLIGHT_MAX,
)

if TYPE_CHECKING:
    from _typeshed import TraceFunction

LaneT = TypeVar("LaneT", bound=Hashable)

A, B, C, D = (Digest(letter * 64) for letter in "abcd")


def picker_of(
    lanes: Iterable[LaneT], digests: Iterable[Digest], in_flight_max: int = IN_FLIGHT_MAX
) -> Picker[LaneT]:
    picker = Picker(lanes, in_flight_max=in_flight_max)
    picker.want(digests)
    return picker


def proven(lanes: Sequence[LaneT], digests: Iterable[Digest], took_s: float = 1.0) -> Picker[LaneT]:
    """Return a picker that wants `digests`. Each of its lanes has already delivered one chunk, in
    `took_s` seconds. The current time is 0.
    """
    warm = [Digest(f"{number:064x}") for number, _ in enumerate(lanes)]
    picker = picker_of(lanes, warm)
    for lane in lanes:
        digest = picker.next(lane, -took_s)
        assert digest is not None
        assert picker.arrived(lane, digest, 0)
    picker.want(digests)
    return picker


def test_each_chunk_is_requested_once_in_the_wanted_order() -> None:
    picker = proven(["x", "y"], [A, B, C])
    assert [picker.next(lane, 0) for lane in "xyxy"] == [A, B, C, None]


def test_source_that_has_not_delivered_yet_has_one_open_request() -> None:
    picker = picker_of(["x", "y"], [A, B, C])
    assert [picker.next(lane, 0) for lane in "xxyy"] == [A, None, B, None]
    assert picker.arrived("x", A, 1)
    assert picker.next("x", 1) == C


def test_delivery_time_of_an_urgent_chunk_is_not_measured() -> None:
    picker = Picker(["x", "y"])
    picker.want([A], urgent=True)
    assert picker.next("x", 0) == A
    assert picker.arrived("x", A, 0.01)
    picker.want([B, C])
    assert [picker.next("x", 0.01) for _ in range(2)] == [B, None]
    assert picker.reconsider_at("y", 0.01) == 0.01 + PATIENCE_UNKNOWN_S


def test_source_has_as_many_open_requests_as_its_rate_allows() -> None:
    many = [Digest(f"{number:064x}") for number in range(100, 200)]
    for took_s, open_max in ((10.0, 2), (1.0, 2), (0.5, 3), (0.1, 11), (0.01, IN_FLIGHT_MAX)):
        picker = proven(["x"], many, took_s)
        assert sum(picker.next("x", 0) is not None for _ in many) == open_max


def test_source_that_lacks_a_chunk_has_one_request_until_it_delivers() -> None:
    picker = proven(["x", "y"], [A, B, C, D], took_s=0.25)
    assert [picker.next("x", 0) for _ in range(2)] == [A, B]
    picker.lacks("x", A, 1)
    assert picker.next("x", 1) is None
    picker.lacks("x", B, 1)
    assert [picker.next("x", 1) for _ in range(2)] == [C, None]
    assert picker.arrived("x", C, 2)
    assert picker.next("x", 2) == D


def test_idle_faster_source_takes_over_a_chunk_from_a_slower_one() -> None:
    picker = Picker(["fast", "slow"])
    picker.want([A, B])
    assert [picker.next("slow", 0), picker.next("fast", 0)] == [A, B]
    assert picker.arrived("fast", B, 1)
    assert picker.arrived("slow", A, 10)
    picker.want([C, D])
    assert [picker.next("slow", 10), picker.next("slow", 10)] == [C, D]
    # The fast source takes over the last request in the slow source's queue.
    assert picker.next("fast", 10) == D
    assert picker.arrived("fast", D, 11)
    assert picker.next("fast", 11) == C
    assert picker.next("fast", 11) is None


def test_chunk_is_not_taken_over_by_a_source_that_is_not_faster() -> None:
    picker = proven(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 0) is None


def test_picker_is_done_when_everything_has_arrived() -> None:
    picker = picker_of(["x"], [A])
    assert not picker.done
    picker.next("x", 0)
    assert not picker.done
    picker.arrived("x", A, 1)
    assert (picker.done, picker.stuck, picker.left) == (True, False, 0)


def test_more_chunks_can_be_added_later_without_duplicates() -> None:
    picker = proven(["x"], [A])
    picker.next("x", 0)
    picker.want([A, B, B])
    assert picker.left == 2
    assert picker.next("x", 0) == B
    assert picker.next("x", 0) is None


def test_chunk_that_another_source_lacks_is_requested_before_others() -> None:
    picker = proven(["x", "y"], [A, B, C, D])
    assert picker.next("x", 0) == A
    picker.lacks("x", A, 0)
    assert picker.next("x", 0) == B
    assert picker.next("y", 0) == A


def test_rarest_chunk_is_requested_first() -> None:
    picker = picker_of(["x", "y", "z"], [A, B])
    for lane, digest in (("x", A), ("x", B), ("y", B)):
        picker.lacks_too(lane, digest)
    assert picker.next("z", 0) == B
    assert picker.next("y", 0) == A


def test_requests_of_a_dropped_source_are_given_to_other_sources() -> None:
    picker = picker_of(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 0) is None  # The first request is not late yet.
    picker.drop("x")
    assert picker.next("x", 0) is None
    assert picker.next("y", 0) == A


def test_late_chunk_of_a_dropped_source_counts_once() -> None:
    picker = proven(["x", "y"], [A, B])
    assert [picker.next("x", 0), picker.next("x", 0)] == [A, B]
    picker.drop("x")
    assert [picker.next("y", 0), picker.next("y", 0)] == [A, B]
    assert picker.arrived("x", A, 1)
    assert not picker.arrived("y", A, 2)
    assert picker.left == 1
    assert picker.arrived("y", B, 3)
    assert picker.done


def test_late_chunk_is_also_requested_elsewhere_and_first_copy_wins() -> None:
    picker = picker_of(["x", "y"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("y", 1) is None
    assert picker.reconsider_at("y", 1) == PATIENCE_UNKNOWN_S
    assert picker.next("y", PATIENCE_UNKNOWN_S) == A
    assert picker.arrived("y", A, 6)
    assert picker.done
    assert not picker.arrived("x", A, 7)


def test_patience_follows_from_the_usual_chunk_time() -> None:
    picker = picker_of(["x", "y"], [A, B])
    picker.next("x", 0)
    picker.arrived("x", A, 10)
    picker.next("x", 10)
    assert picker.reconsider_at("y", 10) == 10 + 30
    assert picker.next("y", 39) is None
    assert picker.next("y", 40) == B


def test_urgent_chunk_has_a_shorter_time_limit() -> None:
    picker = Picker(["x", "y"])
    picker.want([A], urgent=True)
    picker.next("x", 0)
    assert picker.reconsider_at("y", 0) == PATIENCE_MIN_S
    assert picker.next("y", PATIENCE_MIN_S) == A


def test_late_chunk_is_soon_requested_from_a_few_and_later_from_all() -> None:
    lanes = [str(number) for number in range(8)]
    picker = picker_of(lanes, [A])
    asked_at = []
    for at in (PATIENCE_UNKNOWN_S * number for number in range(64)):
        asked_at += [at / PATIENCE_UNKNOWN_S for lane in lanes if picker.next(lane, at)]
    assert asked_at == [0, 1, 2, 3, 5, 9, 17, 33]
    assert COPIES_MAX == 4


def test_overdue_chunk_is_not_requested_from_a_source_that_still_owes_one() -> None:
    picker = picker_of(["x", "y"], [A, B])
    assert [picker.next("x", 0), picker.next("y", 1)] == [A, B]
    assert picker.reconsider_at("y", PATIENCE_UNKNOWN_S - 1) == PATIENCE_UNKNOWN_S
    assert picker.next("y", PATIENCE_UNKNOWN_S) is None
    assert picker.reconsider_at("y", PATIENCE_UNKNOWN_S) is None


def test_overdue_chunk_is_not_requested_from_a_source_without_it() -> None:
    picker = picker_of(["x", "y"], [A])
    picker.lacks_too("y", A)
    assert picker.next("x", 0) == A
    assert picker.reconsider_at("y", 0) is None
    assert picker.next("y", PATIENCE_UNKNOWN_S) is None


def test_picker_is_stuck_while_all_sources_lack_all_wanted_chunks() -> None:
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


def test_missing_chunks_are_requested_in_turn_at_growing_intervals() -> None:
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
        assert digest is not None
        picker.lacks("x", digest, now)
        asked.append((digest, round(now / AGAIN_S / 2)))
    assert asked == [
        (B, 0), (C, 0), (D, 0), (B, 1), (C, 3), (D, 6), (B, 10), (C, 15), (D, 21),
    ]  # fmt: skip
    assert picker.next("x", now + AGAIN_S_MAX) == B
    assert picker.arrived("x", B, now + AGAIN_S_MAX)
    assert picker.next("x", now + AGAIN_S_MAX) == C


def test_picking_is_just_as_fast_when_many_chunks_are_missing() -> None:
    def lines_of_a_pick(chunks: int) -> int:
        picker = picker_of(range(17), [Digest(f"{number:064x}") for number in range(chunks)])
        for lane in range(1, 17):
            for number in range(chunks):
                picker.lacks_too(lane, Digest(f"{number:064x}"))
        lines = 0

        def count(frame: FrameType, event: str, _: object) -> TraceFunction:
            nonlocal lines
            # The garbage collector can run finalizers of other tests' objects meanwhile.
            lines += event == "line" and "p2ptrain/swarm/" in frame.f_code.co_filename
            return count

        before = sys.gettrace()
        sys.settrace(count)
        picked = [picker.next(lane, 0) for lane in (1, 0)]
        sys.settrace(before)
        assert None not in picked
        return lines

    assert lines_of_a_pick(2000) == lines_of_a_pick(20) < 500


def test_unanswered_request_is_not_repeated_to_the_same_source() -> None:
    picker = picker_of(["x"], [A])
    assert picker.next("x", 0) == A
    assert picker.next("x", 1000) is None


def test_source_that_is_added_later_is_used() -> None:
    picker = proven(["x"], [A, B, C])
    assert picker.next("x", 0) == A
    picker.add("y")
    assert picker.next("y", 0) == B
    picker.drop("y")
    assert picker.next("y", 0) is None
    picker.add("y")
    assert picker.next("y", 0) in (B, C)


def test_picker_is_stuck_when_no_source_can_have_the_rest() -> None:
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


def test_picker_without_sources_is_stuck_at_once() -> None:
    assert picker_of([], [A]).stuck
    assert not picker_of([], []).stuck


SOURCES = st.dictionaries(
    st.sampled_from("vwxyz"),
    st.tuples(st.sets(st.integers(0, 11)), st.one_of(st.none(), st.integers(0, 8))),
    max_size=5,
)


@given(SOURCES, st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_chunk_of_a_source_that_stays_alive_arrives(
    sources: dict[str, tuple[set[int], int | None]],
    count: int,
    in_flight_max: int,
    rng: random.Random,
) -> None:
    """`sources` has, for each lane, the chunks of a source and the number of requests after which
    the source dies; None if it stays alive.
    """
    digests = [Digest(f"{number:064x}") for number in range(count)]
    picker = picker_of(sources, digests, in_flight_max)
    asked: dict[str, list[Digest]] = {lane: [] for lane in sources}
    requests = dict.fromkeys(sources, 0)
    arrived: set[Digest] = set()
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
    alive = [held for held, dies_after in sources.values() if dies_after is None]
    assert arrived >= {d for d in digests if any(int(d, 16) in held for held in alive)}
    assert picker.done == (arrived == set(digests))
