"""Several peers are asked the same question. Silent and lying peers hardly delay the answer, and a
peer cannot influence when it is asked. Time is virtual in these tests."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from p2ptrain.errors import StoreError
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.ask_peers import AskingRate, first_good, in_order

PACE = AskingRate(at_once=3, next_s=1.0, deadline_s=10.0)
SILENT, LIES = "silent", "lies"

Ask = Callable[[PeerId], Awaitable[str | None]]


def names(count: int, word: str) -> list[PeerId]:
    return [PeerId(f"{word}-{number}") for number in range(count)]


class Peers:
    """Peers that behave as their names say: silent, lying or honest. `asked` lists the peers that
    were asked, and when."""

    def __init__(self) -> None:
        self.asked: list[tuple[PeerId, float]] = []
        self.began_s = 0.0

    async def ask(self, peer: PeerId) -> str | None:
        self.asked.append((peer, trio.current_time() - self.began_s))
        if peer.startswith(SILENT):
            await trio.sleep_forever()
        if peer.startswith(LIES):
            return None
        with trio.move_on_after(0.1):
            await trio.sleep_forever()
        return f"an answer of {peer}"


def question(order: list[PeerId], ask: Ask | None = None) -> tuple[str | None, float, Peers]:
    """Ask the peers in `order`. Return the answer, the virtual seconds until it came, and the
    peers."""
    peers = Peers()

    async def main() -> tuple[str | None, float]:
        peers.began_s = trio.current_time()
        answer = await first_good(order, ask or peers.ask, PACE)
        return answer, trio.current_time() - peers.began_s

    clock = trio.testing.MockClock(autojump_threshold=0)
    answer, seconds = trio.run(main, clock=clock)
    return answer, seconds, peers


def test_honest_peer_among_those_asked_at_once_answers_without_delay() -> None:
    order = [*names(2, SILENT), PeerId("honest"), *names(60, SILENT)]
    answer, seconds, _ = question(order)
    assert answer == "an answer of honest"
    assert seconds == pytest.approx(0.1)


def test_invalid_answers_do_not_delay_the_next_question() -> None:
    answer, seconds, _ = question([*names(60, LIES), PeerId("honest")])
    assert answer == "an answer of honest"
    assert seconds == pytest.approx(0.1)


def test_after_a_silent_second_one_more_peer_is_asked() -> None:
    answer, seconds, peers = question([*names(5, SILENT), PeerId("honest")])
    assert answer == "an answer of honest"
    assert seconds == pytest.approx(3.1)
    assert [at for _, at in peers.asked] == pytest.approx([0, 0, 0, 1, 2, 3])


def test_all_peers_together_have_one_deadline() -> None:
    answer, seconds, peers = question(names(1000, SILENT))
    assert answer is None
    assert seconds == pytest.approx(10.0)
    assert len(peers.asked) <= PACE.at_once + PACE.deadline_s / PACE.next_s


def test_question_ends_once_all_answers_are_invalid() -> None:
    answer, seconds, peers = question(names(7, LIES))
    assert (answer, seconds, len(peers.asked)) == (None, 0.0, 7)
    assert question([])[:2] == (None, 0.0)


def test_error_of_our_own_machine_ends_the_question() -> None:
    async def ask(peer: PeerId) -> str | None:
        if peer.startswith(SILENT):
            await trio.sleep_forever()
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        question([*names(1, SILENT), PeerId("any")], ask)


def test_members_are_asked_first_in_random_order() -> None:
    members, strangers = names(8, "z-member"), names(8, "a-stranger")
    orders = [
        in_order({*members, *strangers}, lambda peer: peer in strangers, random.Random(seed))
        for seed in range(20)
    ]
    assert all(set(order[:8]) == set(members) for order in orders)
    assert len({order[0] for order in orders}) > 3
    assert orders[0] == in_order(
        {*strangers, *members}, lambda peer: peer in strangers, random.Random(0)
    )
