"""Who is up, by the local clock alone."""

from __future__ import annotations

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour, Detector
from p2ptrain.testing.ledgers import peers

A, B = peers("a b")
GREEN, YELLOW, RED = Colour.GREEN, Colour.YELLOW, Colour.RED


def beating(detector: Detector, peer: PeerId, times: list[float]) -> Detector:
    for now in times:
        detector.note_arrival(peer, now)
        detector.changes(now)
    return detector


def regular(until: float = 20.0) -> Detector:
    return beating(Detector(2.0), A, [2.0 * n for n in range(int(until / 2) + 1)])


def watch_from(detector: Detector, now: float, until: float) -> list[tuple[float, PeerId, Colour]]:
    """Look whenever the detector wants to be looked at; what changes, and when."""
    seen = []
    while now <= until:
        seen += [(now, peer, colour) for peer, colour in detector.changes(now)]
        due = detector.next_deadline()
        assert due is not None
        assert due > now
        now = due
    return seen


def test_silence_turns_a_peer_yellow_and_then_red() -> None:
    assert watch_from(regular(), 20.0, 60.0) == [(24.0, A, YELLOW), (28.0, A, RED)]


def test_who_is_heard_again_is_green_again() -> None:
    detector = regular()
    watch_from(detector, 20.0, 40.0)
    detector.note_arrival(A, 41.0)
    assert detector.changes(41.0) == [(A, GREEN)]


def test_a_reset_connection_is_acted_on_at_once() -> None:
    detector = regular()
    detector.hint_lost(A, 20.5)
    assert detector.changes(20.5) == [(A, RED)]
    assert detector.status(A, 20.5) is RED


def test_an_echo_of_what_a_lost_peer_said_before_is_no_sign_of_life() -> None:
    detector = regular()
    detector.hint_lost(A, 20.5)
    detector.changes(20.5)
    detector.note_arrival(A, 20.6)
    assert detector.changes(20.6) == []
    detector.note_arrival(A, 22.0)
    assert detector.changes(22.0) == [(A, GREEN)]


def test_a_stop_of_this_process_says_nothing_about_others() -> None:
    """Stopped from 20 to 80: at most what a normal pause between looks would have shown."""
    detector = regular()
    assert detector.changes(80.0) == [(A, YELLOW)]
    assert watch_from(detector, 80.0, 100.0) == [(84.0, A, RED)]


def test_a_peer_that_lives_stays_green_through_a_stop_of_this_process() -> None:
    detector = regular()
    detector.note_arrival(A, 80.0)
    assert detector.changes(80.0) == []


def test_a_peer_that_was_never_heard_is_expected_from_when_it_is_watched() -> None:
    detector = Detector(2.0)
    detector.watch(B, 0.0)
    detector.watch(B, 1.0)
    assert detector.status(B, 1.0) is GREEN
    assert watch_from(detector, 1.0, 30.0) == [(4.0, B, YELLOW), (8.0, B, RED)]


def test_an_irregular_peer_is_given_the_time_that_it_usually_takes() -> None:
    times = [0.0]
    for n in range(20):
        times.append(times[-1] + (2.0 if n % 3 else 4.0))
    last = times[-1]
    detector = beating(Detector(2.0), A, times)
    assert watch_from(detector, last, last + 60) == [
        (last + 8.0, A, YELLOW),
        (last + 16.0, A, RED),
    ]


def test_but_not_more_than_a_bound() -> None:
    detector = Detector(1.0)
    for second in range(401):
        if second % 100 == 0:
            detector.note_arrival(A, float(second))
        detector.changes(float(second))
    assert watch_from(detector, 400.0, 500.0) == [(408.0, A, YELLOW), (416.0, A, RED)]


def test_frequent_words_do_not_make_it_impatient() -> None:
    detector = beating(Detector(2.0), A, [0.1 * n for n in range(100)])
    assert watch_from(detector, 9.9, 30.0)[0] == (pytest.approx(13.9), A, YELLOW)


def test_an_unknown_peer_is_red_and_a_forgotten_one_is_not_mentioned() -> None:
    detector = regular()
    assert detector.status(B, 20.0) is RED
    detector.hint_lost(B, 20.0)
    detector.forget(A)
    assert detector.changes(100.0) == []
    assert detector.next_deadline() is None


def test_many_fresh_peers_change_nothing_until_they_are_silent() -> None:
    detector = Detector(2.0)
    names = [PeerId(f"p{n}") for n in range(1000)]
    for name in names:
        detector.note_arrival(name, 0.0)
    assert detector.changes(3.9) == []
    assert len(detector.changes(4.0)) == 1000
