"""A node asks a few peers for an allowlist that was announced but not sent. These tests check which
peers it asks.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_notices import ASKED_MAX, KNOWN_MAX, AllowlistNotices


def peer(number: int) -> PeerId:
    return PeerId(f"peer {number}")


def test_questions_are_limited_to_one_per_peer_and_in_total() -> None:
    notices = AllowlistNotices()
    assert [notices.turn(peer(0), 0.0), notices.turn(peer(0), 0.0)] == [0, None]
    assert [notices.turn(peer(n), 0.0) for n in range(1, ASKED_MAX)] == list(range(1, ASKED_MAX))
    assert notices.turn(peer(99), 0.0) is None
    notices.note_answered(peer(3))
    assert notices.turn(peer(99), 0.0) == ASKED_MAX - 1


def test_peer_that_showed_nothing_new_is_not_asked_for_a_while() -> None:
    notices = AllowlistNotices()
    notices.leave_alone(peer(0), 60.0)
    assert [notices.turn(peer(0), 59.0), notices.turn(peer(1), 59.0)] == [None, 0]
    assert notices.turn(peer(0), 60.0) == 1


def test_memory_of_peers_that_showed_nothing_new_is_bounded() -> None:
    notices = AllowlistNotices()
    for number in range(KNOWN_MAX + 1):
        notices.leave_alone(peer(number), 60.0)
    assert len(notices.resting) == KNOWN_MAX
    assert notices.turn(peer(0), 1.0) == 0
