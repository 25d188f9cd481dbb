"""When all peers say that they are waiting, the peer that causes the wait is found."""

from __future__ import annotations

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import NEIGHBOURS_MAX, ReduceRequest, Schedule
from p2ptrain.ring.wait_for import (
    CRUMB_BYTES,
    NEWS_STALLS,
    OTHERS_STALLS,
    SLOWEST_BYTES_PER_S,
    STALL_SILENCES,
    Excuse,
    Excuses,
)

STALL_S = STALL_SILENCES * 1.0


def excuses_of(
    me: int, schedule: Schedule = "ring", peers: int = 4, numel: int = 10_000
) -> Excuses:
    names = tuple(PeerId(f"peer-{number}") for number in range(peers))
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, names, me, (1,) * peers, numel, codec_of("int8", 256),
        schedule=schedule, silence_s=1.0,
    )  # fmt: skip
    return Excuses(request, request.plan(), 0.0)


def fault(excuses: Excuses, now: float, *, held_for: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the peer at fault where peer 1 owes us something and peer 3 does not."""
    return excuses.at_fault({1: 5, 3: 0}, held_for, now)[0]


@pytest.mark.parametrize(
    ("said", "in_time", "late"),
    [
        (None, (1,), (1,)),  # it sends tiny pieces
        (Excuse(1, 1), (1,), (1,)),  # it says so itself
        (Excuse(1, 0), (), (1, 0)),
        (Excuse(0, 3), (), (0, 3)),  # honest peers in a chain pass this on
        (Excuse(0, 0), (), (0,)),
        (Excuse(3, 2), (3,), (3,)),  # it waits for us, and we have sent everything we can
        (Excuse(2, 1), (), ()),  # we say ourselves that we wait for peer 1
    ],
)
def test_peer_that_causes_a_wait_is_blamed_in_the_end(
    said: Excuse | None, in_time: tuple[int, ...], late: tuple[int, ...]
) -> None:
    excuses = excuses_of(me=2)
    if said is not None:
        assert excuses.heard(1, said, 0.0)
        assert not excuses.heard(1, said, 2.0)
    assert fault(excuses, STALL_S - 0.1) == ()
    assert fault(excuses, STALL_S) == in_time
    assert fault(excuses, OTHERS_STALLS * STALL_S - 0.1) == in_time
    assert fault(excuses, OTHERS_STALLS * STALL_S) == late


def test_peer_that_waits_for_us_is_not_blamed() -> None:
    excuses = excuses_of(me=2)
    excuses.heard(1, Excuse(3, 2), 0.0)
    assert fault(excuses, 3 * STALL_S, held_for=(3,)) == ()


def test_progress_restarts_the_wait_but_tiny_pieces_do_not() -> None:
    excuses = excuses_of(me=2)
    excuses.came(1, CRUMB_BYTES - 1, 3.0, complete=False)
    assert fault(excuses, STALL_S) == (1,)
    excuses.came(1, 1, 3.0, complete=False)
    assert fault(excuses, STALL_S) == ()
    excuses.heard(1, Excuse(1, 1), 5.0)
    assert fault(excuses, 5.0 + STALL_S - 0.1) == ()
    excuses.moved(1, 6.0)
    assert fault(excuses, 6.0 + STALL_S - 0.1) == ()
    assert fault(excuses, 6.0 + STALL_S) == (1,)


@pytest.mark.parametrize(
    ("said", "found", "stalls"),
    [((1, 1), (1,), NEWS_STALLS + 1), ((1, 0), (1, 0), OTHERS_STALLS)],
)
def test_peer_that_keeps_changing_its_excuse_is_blamed_in_the_end(
    said: tuple[int, int], found: tuple[int, ...], stalls: int
) -> None:
    excuses, now = excuses_of(me=2), 0.0
    while now < stalls * STALL_S:
        assert fault(excuses, now) == ()
        excuses.heard(1, Excuse(0, 3), now)
        excuses.heard(1, Excuse(*said), now)
        now += 0.5
    assert fault(excuses, now) == found


def test_neighbour_of_a_liar_blames_it_before_others_blame_both() -> None:
    """Peer 0 forwards less than it hears. By chance it always forwards the same excuse."""
    hears, hears_of, now = excuses_of(0, "grid"), excuses_of(2, "grid"), 0.0
    hears_of.heard(0, Excuse(0, 1), now)
    while not (found := hears.at_fault({1: 5, 2: 0}, (), now)[0]):
        assert hears_of.at_fault({0: 5, 3: 0}, (), now) == ((), "")
        hears.heard(1, Excuse(1, 1), now)
        hears.heard(1, Excuse(1, 0), now)
        now += 0.5
    assert found == (1,)
    assert hears_of.at_fault({0: 5, 3: 0}, (), now + STALL_S / 2) == ((), "")


def test_peer_in_the_middle_of_a_segment_has_no_excuse_for_it() -> None:
    excuses = excuses_of(me=2)
    excuses.heard(1, Excuse(0, 3), 1.0)
    excuses.came(1, 10, 2.0, complete=False)
    assert excuses.to_say([1], holds_back=False) == Excuse(2, 1)
    excuses.came(1, 10, 3.0, complete=True)
    assert excuses.to_say([1], holds_back=False) == Excuse(0, 3)


def test_slow_sender_gets_time_for_a_segment_to_each_neighbour() -> None:
    peers = NEIGHBOURS_MAX + 1
    excuses = excuses_of(me=2, schedule="direct", peers=peers, numel=40_000_000)
    assert excuses.stall_s > 1.5 * NEIGHBOURS_MAX * 400_000 / SLOWEST_BYTES_PER_S


def test_last_peer_in_a_chain_of_waits_is_passed_on() -> None:
    excuses = excuses_of(me=2)
    assert excuses.to_say([1], holds_back=False) == Excuse(2, 1)
    assert excuses.to_say([1], holds_back=True) == Excuse(2, 2)
    assert excuses.to_say([], holds_back=False) == Excuse(2, 2)
    excuses.heard(1, Excuse(0, 3), 1.0)
    assert excuses.to_say([1], holds_back=False) == Excuse(0, 3)
    excuses.heard(1, Excuse(3, 2), 1.0)
    assert excuses.to_say([1], holds_back=False) == Excuse(2, 1)


@pytest.mark.parametrize(
    ("schedule", "waiting", "awaited"),
    [("ring", 0, 1), ("ring", 3, 1), ("ring", 4, 4), ("ring", 0, 99), ("grid", 0, 3)],
)
def test_wait_that_the_plan_does_not_contain_is_refused(
    schedule: Schedule, waiting: int, awaited: int
) -> None:
    excuses = excuses_of(me=2, schedule=schedule)
    with pytest.raises(RemoteProtocolError):
        excuses.heard(3, Excuse(waiting, awaited), 0.0)


def trickled(excuses: Excuses, bytes_per_s: float, until_s: float) -> tuple[int, float] | None:
    """Peer 1 is in the middle of a segment and continues at this rate. Return the peer that is
    named, and when.
    """
    now, tick_s = 0.0, 0.25
    while now < until_s:
        excuses.under_way(1, now, begun=True)
        if (found := excuses.trickling(now)) is not None:
            return found[0], now
        now += tick_s
        excuses.came(1, int(bytes_per_s * tick_s), now, complete=False)
    return None


@pytest.mark.parametrize("said", [None, Excuse(1, 1), Excuse(0, 3)])
def test_trickling_sender_is_dropped_as_soon_as_a_silent_one(said: Excuse | None) -> None:
    """This is so whichever peer the neighbour claims to wait for."""
    excuses = excuses_of(me=2)
    if said is not None:
        excuses.heard(1, said, 0.0)
    assert excuses.segment_s == 1.0 < excuses.stall_s
    assert trickled(excuses, 4, 10.0) == (1, 1.0)


@pytest.mark.parametrize(("schedule", "peers"), [("ring", 4), ("direct", 4), ("direct", 17)])
def test_slowest_acceptable_line_is_never_blamed(schedule: Schedule, peers: int) -> None:
    """It divides its 1 Mbit/s among its neighbours, and each neighbour sees its part."""
    excuses = excuses_of(me=2, schedule=schedule, peers=peers, numel=40_000_000)
    neighbours = 2 if schedule == "ring" else peers - 1
    assert trickled(excuses, SLOWEST_BYTES_PER_S / neighbours, 60.0) is None


def test_frame_that_we_leave_unread_is_not_a_trickle() -> None:
    excuses = excuses_of(me=2)
    excuses.under_way(1, 0.0, begun=True)
    excuses.under_way(1, 0.9, begun=False)
    excuses.under_way(1, 1.5, begun=True)
    assert excuses.trickling(2.4) is None
    assert excuses.trickling(2.5) is not None
