"""How much one peer may ask, and how much of a queue it may fill."""

from __future__ import annotations

from p2ptrain.node.allowance import KNOWN_MAX, Allowance, Shares


def test_turns_are_used_up_and_come_back_with_time() -> None:
    turns = Allowance(per_s=2.0, burst=3)
    assert [turns.take("ann", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert [turns.take("ann", 10.4), turns.take("ann", 10.5)] == [False, True]
    assert [turns.take("ann", 100.0) for _ in range(4)] == [True, True, True, False]


def test_who_asks_too_often_takes_turns_from_nobody_else() -> None:
    turns = Allowance(per_s=1.0, burst=1)
    for _ in range(100):
        turns.take("mal", 0.0)
    assert turns.take("ann", 0.0)
    assert turns.take("mal", 1.0), "and what it was refused does not count against it"


def test_of_very_many_askers_the_newest_are_counted() -> None:
    turns = Allowance(per_s=1.0, burst=1)
    for number in range(KNOWN_MAX + 1):
        assert turns.take(number, 0.0)
    assert not turns.take(KNOWN_MAX, 0.0)
    assert turns.take(0, 0.0)


def test_one_author_leaves_most_of_a_queue_to_the_others() -> None:
    shares, free = Shares(), 4096
    while shares.take("mal", free, 4096):
        free -= 1
    assert 3600 < free < 4096 - 256
    assert shares.take("ann", free, 4096)


def test_however_many_flood_who_has_nothing_waiting_finds_a_place() -> None:
    shares, free = Shares(), 4096
    for flooder in range(500):
        while shares.take(flooder, free, 4096):
            free -= 1
    assert shares.take("ann", free, 4096)


def test_what_waits_no_longer_makes_room_for_its_author() -> None:
    shares = Shares()
    assert [shares.take("ann", free, 16) for free in (12, 11, 10)] == [True, True, False]
    shares.give_back("bob")
    shares.give_back("ann")
    assert shares.take("ann", 11, 16)
    assert not shares.take("ann", 10, 16)
    assert not shares.take("bob", 0, 16)
