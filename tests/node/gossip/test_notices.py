"""If peers announce an allowlist that is too long for gossip, a node asks only some of them for
it."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_notices import ASKED_MAX, KNOWN_MAX, AllowlistNotices


def peer(number: int) -> PeerId:
    return PeerId(f"peer {number}")


def test_one_question_per_peer_and_sixteen_in_all_may_be_open() -> None:
    notices = AllowlistNotices()
    assert [notices.turn(peer(0), 0.0), notices.turn(peer(0), 0.0)] == [0, None]
    assert [notices.turn(peer(n), 0.0) for n in range(1, ASKED_MAX)] == list(range(1, ASKED_MAX))
    assert notices.turn(peer(99), 0.0) is None
    notices.note_answered(peer(3))
    assert notices.turn(peer(99), 0.0) == ASKED_MAX - 1


def test_peer_that_did_not_send_its_list_is_not_asked_for_a_while() -> None:
    notices = AllowlistNotices()
    notices.leave_alone(peer(0), 60.0)
    assert [notices.turn(peer(0), 59.0), notices.turn(peer(1), 59.0)] == [None, 0]
    assert notices.turn(peer(0), 60.0) == 1


def test_number_of_remembered_peers_that_sent_no_list_is_bounded() -> None:
    notices = AllowlistNotices()
    for number in range(KNOWN_MAX + 1):
        notices.leave_alone(peer(number), 60.0)
    assert len(notices.resting) == KNOWN_MAX
    assert notices.turn(peer(0), 1.0) == 0
