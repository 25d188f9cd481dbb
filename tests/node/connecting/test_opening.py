"""Several ways to a peer are tried at once; exactly one connection is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from p2ptrain.dataplane import PeerSocket, SecureSocket, plain_pair
from p2ptrain.errors import PeerError, PeerTooSlow, PeerUnreachable, RemoteProtocolError
from p2ptrain.node.connecting.opening import Opening, Way, open_all
from tests.node.rig import ANN, BOB

FOREVER_S = 1000.0


class Attempt:
    """One opening of two connections with Ann. `kept` are the connections in use, by number."""

    def __init__(self) -> None:
        self.kept: dict[int, SecureSocket] = {}
        self.ends: list[PeerSocket] = []
        self.begun: list[tuple[str, float]] = []
        self.opening = Opening(ANN.peer, "", {0: {}, 1: {}}, FOREVER_S, self.keep)

    def keep(self, number: int, connection: SecureSocket) -> None:
        self.kept[number] = connection

    def connection(self) -> PeerSocket:
        ours, theirs = plain_pair(BOB.peer, ANN.peer)
        self.ends += [ours, theirs]
        return ours

    def way(
        self,
        name: str,
        *numbers: int,
        takes_s: float = 0.0,
        fault: Callable[[str], PeerError | RemoteProtocolError] | None = None,
    ) -> Way:
        """Return a way that opens these connections after `takes_s`, and then fails or ends."""

        async def way(opening: Opening) -> None:
            self.begun.append((name, trio.current_time()))
            await trio.sleep(takes_s)
            for number in numbers:
                if opening.claim(number, name):
                    opening.deliver(number, self.connection())
            if fault is not None:
                raise fault(f"{name} failed")

        return way

    async def open(self, *ways: Way, left_s: float = FOREVER_S) -> None:
        try:
            await open_all(self.opening, ways, left_s=left_s, overlap_s=0.3)
        finally:
            for end in self.ends:
                end.close()


async def test_next_way_starts_while_the_first_hangs(autojump_clock: trio.abc.Clock) -> None:
    a, began_s = Attempt(), trio.current_time()
    await a.open(a.way("dial", takes_s=50.0), a.way("punch", 0, 1), a.way("relay", 0, 1))
    assert [(name, round(at_s - began_s, 3)) for name, at_s in a.begun] == [
        ("dial", 0.0),
        ("punch", 0.3),
    ]
    assert sorted(a.kept) == [0, 1]
    assert trio.current_time() == pytest.approx(began_s + 0.3)


async def test_next_way_starts_at_once_if_the_first_fails(autojump_clock: trio.abc.Clock) -> None:
    a, began_s = Attempt(), trio.current_time()
    await a.open(a.way("dial", fault=PeerUnreachable), a.way("punch", 0, 1))
    assert trio.current_time() == pytest.approx(began_s)
    assert a.opening.met == ["dial failed"]


async def test_later_way_opens_what_an_earlier_one_has_left(
    autojump_clock: trio.abc.Clock,
) -> None:
    a = Attempt()
    await a.open(a.way("dial", 0, fault=PeerUnreachable), a.way("punch", 0, 1))
    first, second, *_ = a.ends[::2]
    assert a.kept == {0: first, 1: second}


async def test_all_errors_are_reported_together(autojump_clock: trio.abc.Clock) -> None:
    a = Attempt()
    with pytest.raises(PeerUnreachable, match="dial failed; punch failed"):
        await a.open(a.way("dial", fault=PeerTooSlow), a.way("punch", fault=RemoteProtocolError))


async def test_opening_ends_in_time_if_every_way_hangs(autojump_clock: trio.abc.Clock) -> None:
    a, began_s = Attempt(), trio.current_time()
    with pytest.raises(PeerTooSlow, match="did not connect in time"):
        await a.open(a.way("dial", takes_s=50.0), a.way("punch", takes_s=50.0), left_s=6.0)
    assert trio.current_time() == pytest.approx(began_s + 6.0)


def test_connection_can_be_claimed_by_one_try_at_a_time() -> None:
    a, dial, punch = Attempt(), object(), object()
    assert a.opening.claim(0, dial)
    assert a.opening.claim(0, dial), "the same try may send its hello again"
    assert not a.opening.claim(0, punch)
    a.opening.release(0, punch)
    assert not a.opening.claim(0, punch), "only the holder can release it"
    a.opening.release(0, dial)
    assert a.opening.claim(0, punch)
    used, late = a.connection(), a.connection()
    a.opening.deliver(0, used)
    a.opening.deliver(0, late)
    assert (a.kept, used.ended.is_set(), late.ended.is_set()) == ({0: used}, False, True)
    assert not a.opening.claim(0, punch), "it is open already"
    assert a.opening.missing == [1]
    for end in a.ends:
        end.close()
