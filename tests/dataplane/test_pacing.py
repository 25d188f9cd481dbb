"""Senders under a rate limit: the order in which they send, and how much each sends. The time is
simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.dataplane.pacing import FLOOR, Flow, Pacer, SendPriority, Ticket
from p2ptrain.dataplane.uplink import BURST_S
from p2ptrain.errors import LocalProtocolError

RATE = 1000


@dataclass
class Sender:
    """A sender that keeps requesting tickets of the sizes in `sizes`, `open_max` at a time."""

    rank: SendPriority
    sizes: list[int]
    open_max: int = 1
    flow: Flow = field(init=False)
    tickets: list[Ticket] = field(default_factory=list)
    asked: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.flow = Flow(self.rank)


@dataclass
class Line:
    """A link with a rate limit, its senders, and the time. `granted` has an entry (time, sender,
    bytes) for each granted ticket."""

    senders: list[Sender]
    pacer: Pacer = field(default_factory=lambda: Pacer(RATE, burst_bytes=0))
    late: Iterator[float] = field(default_factory=lambda: repeat(0.0))
    """The delays of the successive wake-ups, in seconds."""
    now: float = 1000.0
    granted: list[tuple[float, Sender, int]] = field(default_factory=list)

    def run(self, until: float) -> None:
        """Let the senders request tickets and send until the time `until`. All senders poll when
        the shortest wait has ended."""
        while self.now < until:
            waits = [self._look(sender) for sender in self.senders]
            self.now += min(waits) + next(self.late) if min(waits) else 1e-9

    def _look(self, sender: Sender) -> float:
        while len(sender.tickets) < sender.open_max:
            size = sender.sizes[sender.asked % len(sender.sizes)]
            sender.tickets.append(self.pacer.request_ticket(sender.flow, size, self.now))
            sender.asked += 1
        waits = [self.pacer.wait_s(ticket, self.now) for ticket in sender.tickets]
        for ticket in [ticket for ticket in sender.tickets if ticket.granted]:
            sender.tickets.remove(ticket)
            sender.sent += ticket.count
            self.granted.append((self.now, sender, ticket.count))
        return min(waits)


sizes = st.lists(st.integers(20, 300), min_size=1, max_size=4)
senders = st.lists(
    st.builds(Sender, st.sampled_from(SendPriority), sizes, st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


def test_burst_is_granted_at_once_and_the_rest_at_the_rate() -> None:
    pacer, flow = Pacer(100, burst_bytes=50), Flow(SendPriority.RING)
    tickets = [pacer.request_ticket(flow, count, 10.0) for count in (50, 10, 30)]
    assert [pacer.wait_s(each, 10.0) for each in tickets] == pytest.approx([0.0, 0.1, 0.4])
    assert [pacer.wait_s(each, 10.4) for each in tickets] == pytest.approx([0.0, 0.0, 0.0])
    assert pacer.wait_s(pacer.request_ticket(flow, 100, 10.4), 10.4) == pytest.approx(1.0)


def test_idle_link_saves_up_no_more_than_its_burst() -> None:
    pacer, flow = Pacer(100, burst_bytes=50), Flow(SendPriority.SWARM)
    pacer.request_ticket(flow, 50, 10.0)
    assert pacer.wait_s(pacer.request_ticket(flow, 150, 3610.0), 3610.0) == pytest.approx(1.0)


@settings(deadline=None, max_examples=40)
@given(senders, st.integers(0, 500))
def test_bytes_of_no_interval_exceed_the_limit(senders: list[Sender], burst: int) -> None:
    line = Line(senders, Pacer(RATE, burst_bytes=burst))
    line.run(1002.0)
    # `ahead` is the number of granted bytes minus the bytes that the rate allows. It may exceed its
    # lowest value by at most the burst and one ticket, which had begun at the time of that value.
    largest = max(size for sender in senders for size in sender.sizes)
    ahead = ahead_least = 0.0
    before = 1000.0
    for when, _, count in line.granted:
        ahead -= RATE * (when - before)
        ahead_least = min(ahead_least, ahead)
        ahead += count
        before = when
        assert ahead - ahead_least <= burst + largest + 0.001
    assert sum(count for _, _, count in line.granted) <= RATE * 2 + burst + 0.001


@settings(deadline=None, max_examples=40)
@given(senders)
def test_link_with_a_waiting_sender_is_never_idle(senders: list[Sender]) -> None:
    line = Line(senders)
    line.run(1002.0)
    assert RATE * 2 - 300 <= sum(count for _, _, count in line.granted) <= RATE * 2 + 0.001


@settings(deadline=None, max_examples=20)
@given(senders, st.lists(st.floats(0, BURST_S), min_size=1, max_size=20))
def test_long_run_rate_is_within_a_percent_despite_late_wake_ups(
    senders: list[Sender], late: list[float]
) -> None:
    """The default burst of an uplink makes up for late wake-ups of threads."""
    line = Line(senders, Pacer(RATE, burst_bytes=round(BURST_S * RATE)), cycle(late))
    line.run(1040.0)
    assert sum(sender.sent for sender in senders) == pytest.approx(RATE * 40, rel=0.01)


@settings(deadline=None, max_examples=40)
@given(sizes, sizes, st.integers(2, 4), st.integers(2, 4), st.sampled_from(SendPriority))
def test_two_waiting_flows_get_equal_bytes(
    left: list[int], right: list[int], left_open: int, right_open: int, rank: SendPriority
) -> None:
    """The two flows get equal bytes for any ticket sizes, and for any number of tickets requested
    at a time."""
    one, other = Sender(rank, left, left_open), Sender(rank, right, right_open)
    line = Line([one, other])
    sent: Counter[int] = Counter()
    line.run(1003.0)
    for _, sender, count in line.granted:
        sent[id(sender)] += count
        assert abs(sent[id(one)] - sent[id(other)]) <= max(left) + max(right)


@settings(deadline=None, max_examples=40)
@given(st.integers(10, 64), st.integers(10, 64), st.integers(1, 3), st.integers(1, 8))
def test_swarm_gets_its_floor_when_the_ring_could_fill_the_link(
    piece: int, slice_: int, ring_open: int, swarm_open: int
) -> None:
    ring = Sender(SendPriority.RING, [piece], 1 + ring_open)
    swarm = Sender(SendPriority.SWARM, [slice_], swarm_open)
    line = Line([ring, swarm])
    line.run(1010.0)
    due = FLOOR * (ring.sent + swarm.sent)
    assert abs(swarm.sent - due) <= slice_ + piece


def test_swarm_gets_a_sixteenth_of_the_uplink_during_a_reduce() -> None:
    """`FLOOR` is a sixteenth. For example, a sixteenth of 8 Mbit/s is 0.5 Mbit/s, so a single
    fetcher gets about 62 kB per second."""
    ring, swarm = Sender(SendPriority.RING, [16_000], 2), Sender(SendPriority.SWARM, [16_000], 2)
    Line([ring, swarm], Pacer(1_000_000, burst_bytes=0)).run(1010.0)
    assert swarm.sent == pytest.approx(10 * 62_500, abs=32_000)


def test_swarm_gets_all_capacity_that_the_ring_does_not_use() -> None:
    """The ring sends for a second and then stops. When it sends again, it waits for only one slice
    of the swarm."""
    ring, swarm = Sender(SendPriority.RING, [50], 2), Sender(SendPriority.SWARM, [16], 4)
    line = Line([ring, swarm])
    line.run(1001.0)
    line.senders = [swarm]
    line.pacer.close(ring.flow)
    before = swarm.sent
    line.run(1002.0)
    assert swarm.sent - before == pytest.approx(RATE, abs=50 + 16)
    back = line.pacer.request_ticket(Flow(SendPriority.RING), 50, line.now)
    assert line.pacer.wait_s(back, line.now) <= (16 + 50) / RATE


def test_ring_without_a_swarm_gets_the_whole_link() -> None:
    ring = Sender(SendPriority.RING, [50])
    Line([ring]).run(1002.0)
    assert ring.sent == pytest.approx(2 * RATE, abs=50)


def test_idle_sender_does_not_save_up_capacity() -> None:
    early, late = Sender(SendPriority.RING, [50]), Sender(SendPriority.RING, [50])
    line = Line([early])
    line.run(1010.0)
    line.senders.append(late)
    before = early.sent
    line.run(1012.0)
    assert abs(late.sent - (early.sent - before)) <= 2 * 50


def test_closed_flow_does_not_delay_other_flows() -> None:
    pacer, gone, here = Pacer(RATE, burst_bytes=0), Flow(SendPriority.RING), Flow(SendPriority.RING)
    theirs = [pacer.request_ticket(gone, 500, 1000.0) for _ in range(4)]
    ours = pacer.request_ticket(here, 500, 1000.0)
    pacer.close(gone)
    # Only the ticket that had already begun comes before ours.
    assert pacer.wait_s(ours, 1000.0) == pytest.approx(1.0)
    assert [pacer.wait_s(each, 1000.0) > 0 for each in theirs] == [True, False, False, False]


def test_sender_that_stops_polling_delays_others_only_once() -> None:
    pacer, dead, here = (
        Pacer(RATE, burst_bytes=0),
        Flow(SendPriority.RING),
        Flow(SendPriority.SWARM),
    )
    pacer.request_ticket(dead, 500, 1000.0)
    ours = pacer.request_ticket(here, 100, 1000.0)
    assert pacer.wait_s(ours, 1000.0) == pytest.approx(0.6)
    assert pacer.wait_s(ours, 1000.6 + 1e-6) == 0.0


def test_late_sender_finds_several_tickets_granted() -> None:
    """A busy machine wakes threads late. The link keeps granting tickets in the meantime."""
    pacer, flow = Pacer(RATE, burst_bytes=0), Flow(SendPriority.RING)
    tickets = [pacer.request_ticket(flow, 100, 1000.0) for _ in range(3)]
    assert [pacer.wait_s(each, 1000.25) for each in tickets] == pytest.approx([0, 0, 0.05])


@pytest.mark.parametrize(
    ("rate", "burst", "floor"),
    [(0, 0, 0), (-1.0, 0, 0), (math.nan, 0, 0), (1, -1, 0), (1, 0, 1.0), (1, 0, -0.1)],
)
def test_invalid_rate_burst_or_floor_is_refused(rate: float, burst: int, floor: float) -> None:
    with pytest.raises(LocalProtocolError):
        Pacer(rate, burst_bytes=burst, floor=floor)
