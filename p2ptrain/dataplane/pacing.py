"""Whose bytes go next under a cap: a pure decision, told the time.

Who wants to send asks for a *ticket*, and sends once it is granted. The line is thought of as
sending one ticket after the other at the cap's rate, and a ticket is granted when its last byte is
paid for: so over any stretch no more is granted than the rate allows, a burst that is stated, and
one ticket.

Which ticket is next:
1. The ring's before the swarm's: a reduce is what all members wait for, a fetch is not.
2. But of what goes while the swarm waits, it gets `FLOOR`: a fetch that stands still is given up.
3. Within each, flows (two reduces at once, say) get equal bytes while both wait: the ticket goes
   first whose flow has had least (start-time fair queueing; Goyal, Vin and Cheng, 1996). A flow
   that had nothing to send saves nothing up. Flows with one ticket at a time just take turns.

A ticket once begun is finished, so the ring waits for a slice of the swarm's at most. Nobody has to
come back for a ticket: what is granted to a dead thread is lost once, and delays nobody for ever.
This module does not know clocks, threads or sockets; `uplink` does.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from p2ptrain.errors import LocalProtocolError

FLOOR = 1 / 16
"""Of the cap, for the swarm, while it waits and the ring could use all. At 8 Mbit/s a fetcher gets
64 kB in a second; it gives a source up that sends nothing for a minute."""


class Rank(Enum):
    """What bytes are for; the first goes first."""

    RING = 0
    SWARM = 1


@dataclass(slots=True)
class Flow:
    """Those who share one share: the streams of a reduce, or one peer's that fetches from us."""

    rank: Rank
    paid_to: float = 0.0
    """On the rank's clock of bytes: where its next ticket begins."""


@dataclass(slots=True, order=True)
class Ticket:
    """Leave to send `count` bytes, once it is `granted`."""

    begins: float
    """On the rank's clock of bytes."""
    number: int
    flow: Flow = field(compare=False)
    count: int = field(compare=False)
    asked_at: float = field(compare=False)
    granted: bool = field(default=False, compare=False)


class Pacer:
    """Tickets under a cap of `bytes_per_s`. `now` may never go back.

    A line that was idle sends up to `burst_bytes` at once.
    """

    def __init__(self, bytes_per_s: float, *, burst_bytes: int, floor: float = FLOOR) -> None:
        if not bytes_per_s > 0 or burst_bytes < 0 or not 0 <= floor < 1:
            raise LocalProtocolError(
                f"{bytes_per_s} bytes/s, bursts of {burst_bytes}, a floor of {floor}"
            )
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._floor = floor
        self._waiting: dict[Rank, list[Ticket]] = {rank: [] for rank in Rank}
        """Heaps."""
        self._clocks = dict.fromkeys(Rank, 0.0)
        """In bytes: where the ticket began that was begun last."""
        self._owed = 0.0
        """Bytes that the swarm is to get before the ring goes on."""
        self._line: Ticket | None = None
        """What is being paid for."""
        self._free_at = -float("inf")
        """When the line is paid to."""
        self._tickets = 0

    def ask(self, flow: Flow, count: int, now: float) -> Ticket:
        """A ticket for `count` bytes, behind those that the flow asked for before."""
        assert count >= 0
        self._advance(now)
        begins = max(self._clocks[flow.rank], flow.paid_to)
        flow.paid_to = begins + count
        self._tickets += 1
        ticket = Ticket(begins, self._tickets, flow, count, now)
        heapq.heappush(self._waiting[flow.rank], ticket)
        return ticket

    def wait_s(self, ticket: Ticket, now: float) -> float:
        """Seconds until it is worth asking again; 0 once the ticket is granted."""
        self._advance(now)
        if ticket.granted:
            return 0.0
        ahead = 0
        if ticket is not self._line:
            waiting = self._waiting[ticket.flow.rank]
            ahead = sum(each.count for each in waiting if each <= ticket)
        return max(0.0, self._free_at - now) + ahead / self._bytes_per_s

    def close(self, flow: Flow) -> None:
        """Nothing more is sent for this flow: what it waits for does not delay the others.

        Should somebody look at such a ticket all the same, it is granted.
        """
        waiting = self._waiting[flow.rank]
        for ticket in waiting:
            ticket.granted |= ticket.flow is flow
        waiting[:] = [ticket for ticket in waiting if not ticket.granted]
        heapq.heapify(waiting)

    def _advance(self, now: float) -> None:
        """Pay for what time has paid for."""
        while self._line is None or self._free_at <= now:
            if self._line is not None:
                self._grant(self._line)
                self._line = None
            rank = self._next_rank()
            if rank is None:
                return
            self._begin(heapq.heappop(self._waiting[rank]))

    def _grant(self, ticket: Ticket) -> None:
        ticket.granted = True
        if ticket.flow.rank is Rank.RING and self._waiting[Rank.SWARM]:
            self._owed += ticket.count * self._floor / (1 - self._floor)

    def _begin(self, ticket: Ticket) -> None:
        rank = ticket.flow.rank
        self._clocks[rank] = ticket.begins
        if rank is Rank.SWARM:
            self._owed = max(0.0, self._owed - ticket.count)
        begins_at = max(self._free_at, ticket.asked_at - self._burst_s)
        self._free_at = begins_at + ticket.count / self._bytes_per_s
        self._line = ticket

    def _next_rank(self) -> Rank | None:
        ring, swarm = self._waiting[Rank.RING], self._waiting[Rank.SWARM]
        if swarm and (not ring or self._owed >= swarm[0].count):
            return Rank.SWARM
        return Rank.RING if ring else None
