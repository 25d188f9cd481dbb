"""The amount of gossip accepted from a neighbour is limited, and a flood by one peer does not block
the messages of other peers."""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.eviction import nobody
from p2ptrain.ids import PeerId
from p2ptrain.net.gossip.limits import (
    AT_ONCE,
    AUTHOR_SHARE,
    BYTES_PER_UNIT,
    FRAMES_AT_ONCE,
    OTHERS_SHARE,
    PER_S,
    GossipLimits,
)

from .conftest import identity

MEMBERS = [identity(number).peer for number in range(1, 101)]
FORWARDER, OTHER, LIAR = MEMBERS[:3]
STRANGERS = [identity(number).peer for number in range(1001, 1601)]


def limits() -> GossipLimits:
    return GossipLimits(set(MEMBERS).__contains__)


def taken(
    gate: GossipLimits,
    forwarder: PeerId,
    authors: Iterable[PeerId],
    now: float,
    size_bytes: int = 100,
) -> int:
    return sum(gate.admits_message(forwarder, author, size_bytes, now) for author in authors)


class TestIntake:
    def test_honest_neighbour_can_forward_the_gossip_of_100_members(self) -> None:
        """The neighbour first forwards the newest messages of all members, then their heartbeats
        and allowlists, and at the end of each step ten messages of each member."""
        gate = limits()
        assert taken(gate, FORWARDER, MEMBERS * 4, 0.0) == 400
        for second in range(10, 300):
            now = float(second)
            beats = [MEMBERS[(10 * second + n) % 100] for n in range(10)]
            lists = [MEMBERS[(3 * second + n) % 100] for n in range(3)]
            assert taken(gate, FORWARDER, beats, now) == 10
            assert taken(gate, FORWARDER, lists, now, 32 << 10) == 3
            assert taken(gate, FORWARDER, STRANGERS[:2], now) == 2
            if second % 30 < 10:
                assert taken(gate, FORWARDER, MEMBERS, now) == 100
        assert gate.pop_refused() == {}

    def test_flood_by_many_authors_is_refused_and_counted_per_neighbour(self) -> None:
        gate = limits()
        assert taken(gate, FORWARDER, MEMBERS * 9, 0.0) == AT_ONCE
        assert taken(gate, FORWARDER, MEMBERS * 9, 1.0) == PER_S
        assert taken(gate, OTHER, MEMBERS, 1.0) == 100
        refused = 2 * 900 - AT_ONCE - int(PER_S)
        assert gate.pop_refused() == {FORWARDER: refused}
        assert gate.pop_refused() == {}
        assert gate.refused == refused

    def test_flooding_liar_does_not_block_others_through_a_neighbour(self) -> None:
        gate = limits()
        assert taken(gate, FORWARDER, [LIAR] * 10_000, 0.0) == AT_ONCE * AUTHOR_SHARE
        assert taken(gate, FORWARDER, STRANGERS, 0.0) == AT_ONCE * OTHERS_SHARE
        assert taken(gate, FORWARDER, MEMBERS, 0.0) == 99, (
            "messages of all members except the liar must be accepted"
        )

    def test_flood_from_many_neighbours_is_bounded_in_total(self) -> None:
        """The neighbours send messages in their own names and in the names of members. It takes as
        much time to check either kind."""
        gate = limits()
        for second, most in ((0, AT_ONCE * OTHERS_SHARE), (1, PER_S * OTHERS_SHARE)):
            now = float(second)
            flood = [taken(gate, s, [s, *MEMBERS, *STRANGERS[:99]], now) for s in STRANGERS[:320]]
            assert sum(flood) == most
            assert taken(gate, FORWARDER, [*STRANGERS[:9], *MEMBERS], now) == 100, (
                "only messages of members must be accepted"
            )

    def test_forwarded_flood_leaves_room_for_members(self) -> None:
        """An honest neighbour forwards the flood to the next peer while a hundred members end an
        outer step."""
        first, second = limits(), limits()
        for tenth in range(100):
            now = tenth / 10
            said = MEMBERS[tenth % 10 :: 10] * 10
            passed_on = [s for s in STRANGERS[:20] for _ in range(50) if taken(first, s, [s], now)]
            passed_on += [member for member in said[:10] if taken(first, member, [member], now)]
            assert all(second.admits_frame(FORWARDER, 100, now) for _ in passed_on)
            assert taken(second, FORWARDER, passed_on, now) == len(passed_on)
        assert second.refused == 0

    def test_long_message_counts_as_several_messages(self) -> None:
        gate = limits()
        longest = 31 * BYTES_PER_UNIT - 1
        assert taken(gate, FORWARDER, [LIAR] * 5, 0.0, longest) == 2
        assert taken(gate, FORWARDER, MEMBERS, 0.0, longest) == 14

    def test_number_of_frames_from_one_neighbour_is_limited(self) -> None:
        gate = limits()
        looked_into = sum(gate.admits_frame(FORWARDER, 100, 0.0) for _ in range(2 * FRAMES_AT_ONCE))
        assert looked_into == FRAMES_AT_ONCE
        assert gate.admits_frame(OTHER, 100, 0.0)
        assert gate.pop_refused() == {FORWARDER: FRAMES_AT_ONCE}

    def test_list_of_refused_peers_is_bounded(self) -> None:
        gate = GossipLimits(nobody, complaints_max=3)
        for stranger in STRANGERS[:10]:
            gate.refuse(stranger)
        assert gate.pop_refused() == dict.fromkeys(STRANGERS[7:10], 1)
