"""Unknown peers share a limited number of slots, and a flood from one source takes slots only from
that source."""

from __future__ import annotations

from functools import partial

from p2ptrain.address_group import site_of
from p2ptrain.stranger_slots import StrangerSlots


def test_source_with_the_most_slots_loses_its_oldest_slot() -> None:
    lost: list[int] = []
    slots = StrangerSlots(4)
    crowded = [slots.take(n, source, partial(lost.append, n)) for n, source in enumerate("abbccd")]
    assert (crowded, lost) == ([False] * 4 + [True] * 2, [1, 3])
    assert slots.take(6, "e", partial(lost.append, 6))
    assert lost == [1, 3, 0], "among equal sources, the oldest slot of all is lost"
    for holder in (1, 5):
        slots.release(holder)  # The slot of 1 is already lost.
    assert len(slots) == 3
    slots.take_all_away()
    assert (lost, len(slots)) == ([1, 3, 0, 2, 4, 6], 0)


def test_addresses_of_one_customer_are_one_source() -> None:
    hosts = ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1::2", "::ffff:192.0.2.1", "192.0.2.1"]
    lost: list[int] = []
    slots = StrangerSlots(4)
    for number, host in enumerate(hosts):
        slots.take(number, site_of(host), partial(lost.append, number))
    assert lost == [1], "the older of the two in one /64 network"


def test_slot_is_free_again_after_its_block() -> None:
    slots = StrangerSlots(1)
    lost: list[str] = []
    with slots.taken("a", partial(lost.append, "a")):
        assert len(slots) == 1
    with slots.taken("b", partial(lost.append, "b")), slots.taken("c", partial(lost.append, "c")):
        assert (len(slots), lost) == (1, ["b"])
    assert len(slots) == 0
