"""Decide the order in which a node's threads send bytes under a rate limit.

Bytes have one of two ranks: those of the *ring* (which averages the members' work) or those of the
*swarm* (from which peers fetch data). A sender asks for a *ticket*, and sends when the ticket is
granted. Imagine one link that sends the tickets one after another at the limit's rate. A ticket is
granted when that link would have sent its last byte. So the bytes granted in any interval are at
most the rate times the interval, plus the burst, plus one ticket.

Order of the tickets:
1. The ring's tickets come before the swarm's: all members wait for a reduce, but not for a fetch.
2. While the swarm waits, it gets `FLOOR` of the bytes, because fetchers give up a silent source.
3. Within a rank, waiting flows (two reduces at once, for example) get equal numbers of bytes. The
   next ticket is that of the flow that has had the fewest bytes (start-time fair queueing; Goyal,
   Vin and Cheng, 1996). A flow does not accumulate credit while it is idle. Flows with one ticket
   at a time take turns.

A ticket that has begun is finished, so the ring waits for at most one ticket of the swarm. If the
thread that asked for a ticket has died, its ticket delays other tickets only once, by its own
length. This module uses no clocks, threads or sockets: the time is an argument, and `uplink` adds
the rest.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from p2ptrain.errors import LocalProtocolError

FLOOR = 1 / 16
"""Share of the rate limit that the swarm gets while the ring could use all of it. At 8 Mbit/s, this
is 62 kB per second. A fetcher gives up a source that does not send for a minute."""


class SendPriority(Enum):
    """The purpose of bytes. Bytes of the ring are sent first."""

    RING = 0
    SWARM = 1


@dataclass(slots=True)
class Flow:
    """The streams that use one share: those of a reduce, or of one peer that fetches from us."""

    rank: SendPriority
    paid_to: float = 0.0
    """Where the flow's next ticket begins, on the byte clock of its rank (see `Pacer._clocks`)."""


@dataclass(slots=True, order=True)
class Ticket:
    """Permission to send `count` bytes, as soon as it is `granted`."""

    begins: float
    """Where the ticket begins on the byte clock of its rank. The lowest comes first."""
    number: int
    flow: Flow = field(compare=False)
    count: int = field(compare=False)
    asked_at: float = field(compare=False)
    granted: bool = field(default=False, compare=False)


class Pacer:
    """Issues tickets under a limit of `bytes_per_s`. `now` must never decrease.

    After an idle time, up to `burst_bytes` are granted at once.
    """

    def __init__(self, bytes_per_s: float, *, burst_bytes: int, floor: float = FLOOR) -> None:
        if not bytes_per_s > 0 or burst_bytes < 0 or not 0 <= floor < 1:
            raise LocalProtocolError(
                f"invalid pacing: {bytes_per_s} bytes/s, burst {burst_bytes}, floor {floor}"
            )
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._floor = floor
        self._waiting: dict[SendPriority, list[Ticket]] = {rank: [] for rank in SendPriority}
        """Heaps of the waiting tickets, by rank."""
        self._clocks = dict.fromkeys(SendPriority, 0.0)
        """The byte clocks: for each rank, where the ticket that was started last begins."""
        self._owed = 0.0
        """Bytes that the swarm should get before the ring's next ticket."""
        self._sending: Ticket | None = None
        """The ticket that the imagined link is sending."""
        self._free_at = -float("inf")
        """When that link will have sent that ticket."""
        self._tickets = 0

    def request_ticket(self, flow: Flow, count: int, now: float) -> Ticket:
        """Return a ticket for `count` bytes, queued after the flow's earlier tickets."""
        assert count >= 0
        self._advance(now)
        begins = max(self._clocks[flow.rank], flow.paid_to)
        flow.paid_to = begins + count
        self._tickets += 1
        ticket = Ticket(begins, self._tickets, flow, count, now)
        heapq.heappush(self._waiting[flow.rank], ticket)
        return ticket

    def wait_s(self, ticket: Ticket, now: float) -> float:
        """Return 0 if the ticket is granted, else the seconds to wait before calling again."""
        self._advance(now)
        if ticket.granted:
            return 0.0
        ahead = 0
        if ticket is not self._sending:
            waiting = self._waiting[ticket.flow.rank]
            ahead = sum(each.count for each in waiting if each <= ticket)
        return max(0.0, self._free_at - now) + ahead / self._bytes_per_s

    def set_rate(self, bytes_per_s: float, burst_bytes: int, now: float) -> None:
        """Change the limit. The rest of the ticket that is being sent is sent at the new rate."""
        assert bytes_per_s > 0
        assert burst_bytes >= 0
        self._advance(now)
        if self._sending is not None:
            self._free_at = now + (self._free_at - now) * self._bytes_per_s / bytes_per_s
        self._bytes_per_s, self._burst_s = bytes_per_s, burst_bytes / bytes_per_s

    def close(self, flow: Flow) -> None:
        """Remove a flow that has finished sending, so that its tickets do not delay other tickets.

        The flow's tickets become granted, in case a thread still waits for one of them.
        """
        waiting = self._waiting[flow.rank]
        for ticket in waiting:
            ticket.granted |= ticket.flow is flow
        waiting[:] = [ticket for ticket in waiting if not ticket.granted]
        heapq.heapify(waiting)

    def _advance(self, now: float) -> None:
        """Grant all tickets that the imagined link has sent by `now`."""
        while self._sending is None or self._free_at <= now:
            if self._sending is not None:
                self._grant(self._sending)
                self._sending = None
            rank = self._next_rank()
            if rank is None:
                return
            self._begin(heapq.heappop(self._waiting[rank]))

    def _grant(self, ticket: Ticket) -> None:
        ticket.granted = True
        if ticket.flow.rank is SendPriority.RING and self._waiting[SendPriority.SWARM]:
            self._owed += ticket.count * self._floor / (1 - self._floor)

    def _begin(self, ticket: Ticket) -> None:
        rank = ticket.flow.rank
        self._clocks[rank] = ticket.begins
        if rank is SendPriority.SWARM:
            self._owed = max(0.0, self._owed - ticket.count)
        begins_at = max(self._free_at, ticket.asked_at - self._burst_s)
        self._free_at = begins_at + ticket.count / self._bytes_per_s
        self._sending = ticket

    def _next_rank(self) -> SendPriority | None:
        ring, swarm = self._waiting[SendPriority.RING], self._waiting[SendPriority.SWARM]
        if swarm and (not ring or self._owed >= swarm[0].count):
            return SendPriority.SWARM
        return SendPriority.RING if ring else None
