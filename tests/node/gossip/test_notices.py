"""Whom to ask for a list that is only announced."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_notices import ASKED_MAX, KNOWN_MAX, Notices


def peer(number: int) -> PeerId:
    return PeerId(f"peer {number}")


def test_a_peer_is_asked_one_question_at_a_time_and_so_are_so_many_peers() -> None:
    notices = Notices()
    assert [notices.turn(peer(0), 0.0), notices.turn(peer(0), 0.0)] == [0, None]
    assert [notices.turn(peer(n), 0.0) for n in range(1, ASKED_MAX)] == list(range(1, ASKED_MAX))
    assert notices.turn(peer(99), 0.0) is None
    notices.done(peer(3))
    assert notices.turn(peer(99), 0.0) == ASKED_MAX - 1


def test_who_showed_nothing_is_left_alone_for_a_while() -> None:
    notices = Notices()
    notices.leave_alone(peer(0), 60.0)
    assert [notices.turn(peer(0), 59.0), notices.turn(peer(1), 59.0)] == [None, 0]
    assert notices.turn(peer(0), 60.0) == 1


def test_of_very_many_who_showed_nothing_the_newest_are_remembered() -> None:
    notices = Notices()
    for number in range(KNOWN_MAX + 1):
        notices.leave_alone(peer(number), 60.0)
    assert len(notices.resting) == KNOWN_MAX
    assert notices.turn(peer(0), 1.0) == 0
