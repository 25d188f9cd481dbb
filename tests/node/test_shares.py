"""One author's messages can fill only a share of a queue, and do not delay those of others."""

from __future__ import annotations

from p2ptrain.peers.fair_queue import FairQueue
from p2ptrain.peers.queue_shares import QueueShares


def test_one_author_leaves_most_of_a_queue_to_others() -> None:
    shares, free = QueueShares(), 4096
    while shares.reserve("mal", free, 4096):
        free -= 1
    assert 3600 < free < 4096 - 256
    assert shares.reserve("ann", free, 4096)


def test_new_author_gets_a_place_even_if_many_others_flood_the_queue() -> None:
    shares, free = QueueShares(), 4096
    for flooder in range(500):
        while shares.reserve(flooder, free, 4096):
            free -= 1
    assert shares.reserve("ann", free, 4096)


def test_processed_message_makes_room_for_its_author() -> None:
    shares = QueueShares()
    assert [shares.reserve("ann", free, 16) for free in (12, 11, 10)] == [True, True, False]
    shares.release("bob")
    shares.release("ann")
    assert shares.reserve("ann", 11, 16)
    assert not shares.reserve("ann", 10, 16)
    assert not shares.reserve("bob", 0, 16)


def test_authors_take_turns_and_the_items_of_each_keep_their_order() -> None:
    queue = FairQueue[str]()
    for item in ("m1", "m2", "m3", "a1", "b1", "a2"):
        queue.append(item[0], item)
    assert [queue.pop() for _ in range(4)] == ["m1", "a1", "b1", "m2"]
    queue.append("b", "b2")
    assert [queue.pop() for _ in range(len(queue))] == ["a2", "m3", "b2"]
    assert not queue
