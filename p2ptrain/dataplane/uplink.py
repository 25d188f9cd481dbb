"""Divide a node's upload rate among the ring's streams and the peers that fetch from this node.

`pacing` decides which thread sends next; this module adds the clock and the threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p2ptrain.dataplane.pacing import Flow, Pacer, SendPriority, Ticket
from p2ptrain.ids import PeerId

PEERS_MAX = 1024
"""Maximum number of peers whose shares are kept. A forgotten peer gets a new share, equal to the
old one."""

BURST_BYTES = 64 * 1024
"""Minimum burst in bytes, so that small messages are not delayed."""
BURST_S = 0.01
"""Burst in seconds of sending: a thread wakes a few milliseconds late, and the burst makes up for
the lost time."""

RECONSIDER_S = 1.0
"""Maximum seconds until a waiting thread looks again, because the limit may have changed."""


def _burst_bytes(bytes_per_s: float) -> int:
    return max(BURST_BYTES, round(BURST_S * max(0.0, bytes_per_s)))


_UNLIMITED = 1e15
"""Rate in bytes per second with which the pacer is made if there is no limit. It is not used: no
ticket is queued then."""


class Uplink:
    """One rate limit for all bulk data that a node sends; None stands for no limit. The limit can
    be changed at any time. An object of this class can also limit what a node receives.
    Thread-safe."""

    def __init__(
        self,
        bytes_per_s: float | None = None,
        *,
        burst_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        rate = _UNLIMITED if bytes_per_s is None else bytes_per_s
        burst_bytes = _burst_bytes(rate) if burst_bytes is None else burst_bytes
        self._pacer = Pacer(rate, burst_bytes=burst_bytes)
        self._limited = bytes_per_s is not None
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._asked_bytes = 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limited

    @property
    def asked_bytes(self) -> int:
        """The bytes of all tickets so far. Nearly all of them have been sent, or soon will be."""
        return self._asked_bytes

    def set_rate(self, bytes_per_s: float | None) -> None:
        """Change the limit. It holds at once, also for tickets that wait."""
        with self._lock:
            self._limited = bytes_per_s is not None
            rate = _UNLIMITED if bytes_per_s is None else bytes_per_s
            self._pacer.set_rate(rate, _burst_bytes(rate), self._clock())

    def share(self, rank: SendPriority) -> UplinkShare:
        """Return a new share with the priority `rank`. Shares with the same priority get equal
        numbers of bytes. `close` the share when everything has been sent."""
        return UplinkShare(self, Flow(rank))

    def close(self) -> None:
        """Release all waiting threads without regard to the rate. Call this only when the node
        stops, because their sockets are closed then."""
        self._closed.set()


class UplinkShare:
    """A share of an Uplink: ask for a ticket, and send when `wait_s` returns 0. Thread-safe."""

    def __init__(self, uplink: Uplink, flow: Flow) -> None:
        self._uplink = uplink
        self._flow = flow

    def request_ticket(self, count: int) -> Ticket:
        """Return a ticket for `count` bytes; `wait_s` tells when they may be sent."""
        with self._uplink._lock:
            self._uplink._asked_bytes += count
            if not self._uplink._limited:
                return Ticket(0.0, 0, self._flow, count, 0.0, granted=True)
            return self._uplink._pacer.request_ticket(self._flow, count, self._uplink._clock())

    def wait_s(self, ticket: Ticket) -> float:
        """Return 0 if the ticket's bytes may be sent now, else the seconds until it pays to ask
        again."""
        if ticket.granted or self._uplink._closed.is_set():
            return 0.0
        with self._uplink._lock:
            return self._uplink._pacer.wait_s(ticket, self._uplink._clock())

    def wait_to_send(self, count: int) -> None:
        """Block until `count` bytes may be sent."""
        ticket = self.request_ticket(count)
        while (seconds := self.wait_s(ticket)) > 0:
            self._uplink._closed.wait(min(seconds, RECONSIDER_S))

    def close(self) -> None:
        """Close the share. Threads that still wait for it are released, and must not send."""
        with self._uplink._lock:
            self._uplink._pacer.close(self._flow)


class PeerShares:
    """One share for each peer, so that a peer does not get more bytes by opening more
    connections."""

    def __init__(self, uplink: Uplink, rank: SendPriority, peers_max: int = PEERS_MAX) -> None:
        self._uplink = uplink
        self._rank = rank
        self._peers_max = peers_max
        self._lock = threading.Lock()
        self._shares: dict[PeerId, UplinkShare] = {}

    def wait_to_send(self, peer: PeerId, count: int) -> None:
        """Block until `count` bytes may be sent to this peer."""
        with self._lock:
            share = self._shares.pop(peer, None) or self._uplink.share(self._rank)
            self._shares[peer] = share
            if len(self._shares) > self._peers_max:
                del self._shares[next(iter(self._shares))]
        share.wait_to_send(count)
