"""The failure detector decides which peers are up, using only the local clock."""

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
    """Check the detector at each of its deadlines. Return the changes with their times."""
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


def test_peer_that_is_heard_again_is_green_again() -> None:
    detector = regular()
    watch_from(detector, 20.0, 40.0)
    detector.note_arrival(A, 41.0)
    assert detector.changes(41.0) == [(A, GREEN)]


def test_reset_connection_turns_a_peer_red_at_once() -> None:
    detector = regular()
    detector.hint_lost(A, 20.5)
    assert detector.changes(20.5) == [(A, RED)]
    assert detector.status(A, 20.5) is RED


def test_message_in_flight_during_a_loss_does_not_count_as_a_return() -> None:
    detector = regular()
    detector.hint_lost(A, 20.5)
    detector.changes(20.5)
    detector.note_arrival(A, 20.6)
    assert detector.changes(20.6) == []
    detector.note_arrival(A, 22.0)
    assert detector.changes(22.0) == [(A, GREEN)]


def test_pause_of_this_process_does_not_turn_peers_red() -> None:
    """This process is stopped from 20 s to 80 s. The peer turns yellow but not red: of the stop,
    only the usual time between two checks counts as silence.
    """
    detector = regular()
    assert detector.changes(80.0) == [(A, YELLOW)]
    assert watch_from(detector, 80.0, 100.0) == [(84.0, A, RED)]


def test_live_peer_stays_green_through_a_pause_of_this_process() -> None:
    detector = regular()
    detector.note_arrival(A, 80.0)
    assert detector.changes(80.0) == []


def test_silence_of_a_new_peer_counts_from_the_start_of_the_watch() -> None:
    detector = Detector(2.0)
    detector.watch(B, 0.0)
    detector.watch(B, 1.0)
    assert detector.status(B, 1.0) is GREEN
    assert watch_from(detector, 1.0, 30.0) == [(4.0, B, YELLOW), (8.0, B, RED)]


def test_irregular_peer_gets_more_time() -> None:
    times = [0.0]
    for n in range(20):
        times.append(times[-1] + (2.0 if n % 3 else 4.0))
    last = times[-1]
    detector = beating(Detector(2.0), A, times)
    assert watch_from(detector, last, last + 60) == [
        (last + 8.0, A, YELLOW),
        (last + 16.0, A, RED),
    ]


def test_extra_time_for_irregular_peers_is_bounded() -> None:
    detector = Detector(1.0)
    for second in range(401):
        if second % 100 == 0:
            detector.note_arrival(A, float(second))
        detector.changes(float(second))
    assert watch_from(detector, 400.0, 500.0) == [(408.0, A, YELLOW), (416.0, A, RED)]


def test_frequent_messages_do_not_shorten_the_timeouts() -> None:
    detector = beating(Detector(2.0), A, [0.1 * n for n in range(100)])
    at, *change = watch_from(detector, 9.9, 30.0)[0]
    assert at == pytest.approx(13.9)
    assert change == [A, YELLOW]


def test_unknown_peer_is_red_and_forgotten_peer_is_not_reported() -> None:
    detector = regular()
    assert detector.status(B, 20.0) is RED
    detector.hint_lost(B, 20.0)
    detector.forget(A)
    assert detector.changes(100.0) == []
    assert detector.next_deadline() is None


def test_new_peers_cause_no_changes_until_they_are_silent() -> None:
    detector = Detector(2.0)
    names = [PeerId(f"p{n}") for n in range(1000)]
    for name in names:
        detector.note_arrival(name, 0.0)
    assert detector.changes(3.9) == []
    assert len(detector.changes(4.0)) == 1000
