"""When all peers claim to be waiting, the peer that causes the wait is found."""

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
    Wait,
    WaitForGraph,
)

STALL_S = STALL_SILENCES * 1.0


def graph_of(
    me: int, schedule: Schedule = "ring", peers: int = 4, numel: int = 10_000
) -> WaitForGraph:
    names = tuple(PeerId(f"peer-{number}") for number in range(peers))
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, names, me, (1,) * peers, numel, codec_of("int8", 256),
        schedule=schedule, silence_s=1.0,
    )  # fmt: skip
    return WaitForGraph(request, request.plan(), 0.0)


def fault(waits: WaitForGraph, now: float, *, held_for: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the peers at fault if peer 1 owes us segments and peer 3 does not."""
    return waits.at_fault({1: 5, 3: 0}, held_for, now)[0]


@pytest.mark.parametrize(
    ("said", "in_time", "late"),
    [
        (None, (1,), (1,)),  # peer 1 says nothing, or sends tiny pieces
        (Wait(1, 1), (1,), (1,)),  # peer 1 says that it waits for itself
        (Wait(1, 0), (), (1, 0)),
        (Wait(0, 3), (), (0, 3)),  # honest peers in a chain forward such a wait
        (Wait(0, 0), (), (0,)),
        (Wait(3, 2), (3,), (3,)),  # peer 3 waits for us, but we have sent everything we can
        (Wait(2, 1), (), ()),  # peer 1 repeats our own claim that we wait for it
    ],
)
def test_peer_that_causes_a_wait_is_eventually_blamed(
    said: Wait | None, in_time: tuple[int, ...], late: tuple[int, ...]
) -> None:
    waits = graph_of(me=2)
    if said is not None:
        assert waits.note_wait(1, said, 0.0)
        assert not waits.note_wait(1, said, 2.0)
    assert fault(waits, STALL_S - 0.1) == ()
    assert fault(waits, STALL_S) == in_time
    assert fault(waits, OTHERS_STALLS * STALL_S - 0.1) == in_time
    assert fault(waits, OTHERS_STALLS * STALL_S) == late


def test_peer_that_waits_for_us_is_not_blamed() -> None:
    waits = graph_of(me=2)
    waits.note_wait(1, Wait(3, 2), 0.0)
    assert fault(waits, 3 * STALL_S, held_for=(3,)) == ()


def test_progress_restarts_the_wait_but_tiny_pieces_do_not() -> None:
    waits = graph_of(me=2)
    waits.note_bytes(1, CRUMB_BYTES - 1, 3.0, complete=False)
    assert fault(waits, STALL_S) == (1,)
    waits.note_bytes(1, 1, 3.0, complete=False)
    assert fault(waits, STALL_S) == ()
    waits.note_wait(1, Wait(1, 1), 5.0)
    assert fault(waits, 5.0 + STALL_S - 0.1) == ()
    waits.note_progress(1, 6.0)
    assert fault(waits, 6.0 + STALL_S - 0.1) == ()
    assert fault(waits, 6.0 + STALL_S) == (1,)


@pytest.mark.parametrize(
    ("said", "found", "stalls"),
    [((1, 1), (1,), NEWS_STALLS + 1), ((1, 0), (1, 0), OTHERS_STALLS)],
)
def test_peer_that_keeps_changing_its_wait_is_eventually_blamed(
    said: tuple[int, int], found: tuple[int, ...], stalls: int
) -> None:
    waits, now = graph_of(me=2), 0.0
    while now < stalls * STALL_S:
        assert fault(waits, now) == ()
        waits.note_wait(1, Wait(0, 3), now)
        waits.note_wait(1, Wait(*said), now)
        now += 0.5
    assert fault(waits, now) == found


def test_neighbour_blames_a_liar_before_others_blame_both() -> None:
    """Peer 0 forwards only some of the waits that it receives. This test covers the worst case, in
    which it always happens to forward the same one.
    """
    hears, hears_of, now = graph_of(0, "grid"), graph_of(2, "grid"), 0.0
    hears_of.note_wait(0, Wait(0, 1), now)
    while not (found := hears.at_fault({1: 5, 2: 0}, (), now)[0]):
        assert hears_of.at_fault({0: 5, 3: 0}, (), now) == ((), "")
        hears.note_wait(1, Wait(1, 1), now)
        hears.note_wait(1, Wait(1, 0), now)
        now += 0.5
    assert found == (1,)
    assert hears_of.at_fault({0: 5, 3: 0}, (), now + STALL_S / 2) == ((), "")


def test_wait_of_a_peer_in_the_middle_of_a_segment_is_not_forwarded() -> None:
    waits = graph_of(me=2)
    waits.note_wait(1, Wait(0, 3), 1.0)
    waits.note_bytes(1, 10, 2.0, complete=False)
    assert waits.own_wait([1], holds_back=False) == Wait(2, 1)
    waits.note_bytes(1, 10, 3.0, complete=True)
    assert waits.own_wait([1], holds_back=False) == Wait(0, 3)


def test_slow_sender_gets_enough_time_to_send_a_segment_to_each_neighbour() -> None:
    peers = NEIGHBOURS_MAX + 1
    waits = graph_of(me=2, schedule="direct", peers=peers, numel=40_000_000)
    assert waits.stall_s > 1.5 * NEIGHBOURS_MAX * 400_000 / SLOWEST_BYTES_PER_S


def test_end_of_a_chain_of_waits_is_forwarded() -> None:
    waits = graph_of(me=2)
    assert waits.own_wait([1], holds_back=False) == Wait(2, 1)
    assert waits.own_wait([1], holds_back=True) == Wait(2, 2)
    assert waits.own_wait([], holds_back=False) == Wait(2, 2)
    waits.note_wait(1, Wait(0, 3), 1.0)
    assert waits.own_wait([1], holds_back=False) == Wait(0, 3)
    waits.note_wait(1, Wait(3, 2), 1.0)
    assert waits.own_wait([1], holds_back=False) == Wait(2, 1)


@pytest.mark.parametrize(
    ("schedule", "waiting", "awaited"),
    [("ring", 0, 1), ("ring", 3, 1), ("ring", 4, 4), ("ring", 0, 99), ("grid", 0, 3)],
)
def test_wait_that_does_not_fit_the_plan_is_refused(
    schedule: Schedule, waiting: int, awaited: int
) -> None:
    waits = graph_of(me=2, schedule=schedule)
    with pytest.raises(RemoteProtocolError):
        waits.note_wait(3, Wait(waiting, awaited), 0.0)


def trickled(waits: WaitForGraph, bytes_per_s: float, until_s: float) -> tuple[int, float] | None:
    """Let peer 1 continue a segment at this rate. Return the peer that is named, and when."""
    now, tick_s = 0.0, 0.25
    while now < until_s:
        waits.note_frame(1, now, begun=True)
        if (found := waits.trickling(now)) is not None:
            return found[0], now
        now += tick_s
        waits.note_bytes(1, int(bytes_per_s * tick_s), now, complete=False)
    return None


@pytest.mark.parametrize("said", [None, Wait(1, 1), Wait(0, 3)])
def test_trickling_sender_is_dropped_no_later_than_a_silent_one(said: Wait | None) -> None:
    """The sender is dropped whichever peer it claims to wait for."""
    waits = graph_of(me=2)
    if said is not None:
        waits.note_wait(1, said, 0.0)
    assert waits.segment_s == 1.0 < waits.stall_s
    assert trickled(waits, 4, 10.0) == (1, 1.0)


@pytest.mark.parametrize(("schedule", "peers"), [("ring", 4), ("direct", 4), ("direct", 17)])
def test_peer_on_the_slowest_acceptable_link_is_never_blamed(
    schedule: Schedule, peers: int
) -> None:
    """The peer divides its 1 Mbit/s among its neighbours."""
    waits = graph_of(me=2, schedule=schedule, peers=peers, numel=40_000_000)
    neighbours = 2 if schedule == "ring" else peers - 1
    assert trickled(waits, SLOWEST_BYTES_PER_S / neighbours, 60.0) is None


def test_frame_that_we_leave_unread_does_not_count_as_trickling() -> None:
    waits = graph_of(me=2)
    waits.note_frame(1, 0.0, begun=True)
    waits.note_frame(1, 0.9, begun=False)
    waits.note_frame(1, 1.5, begun=True)
    assert waits.trickling(2.4) is None
    assert waits.trickling(2.5) is not None
