"""Find peers that forward heartbeats from before their author's last start.

An honest peer does not forward a heartbeat if it knows that the author has started again since. So
a peer that forwards such a heartbeat is replaying it, or does not know of the author's last start
yet. But every peer hears of a start within seconds. So a peer is reported if it forwarded outdated
heartbeats three times, at least `APART_S` apart. A time counts only if this node received new
heartbeats of the author for `SPREAD_S` after the last start of the author and of the peer. By then
the peer had time to hear of the author's start. The report is only a hint for users. It is certain
that the peer forwarded the heartbeats, but not that it did so knowingly.

This module does no I/O: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.peers.incarnations import SPREAD_S, IncarnationSpan

APART_S = 10.0
"""Minimum seconds between two counted replays: the longest time between two heartbeats of a member
in a run of a hundred members."""

TIMES = 3
"""Number of counted replays after which a peer is reported."""

FORWARDERS_MAX = 512
"""Maximum number of peers counted: as many as a node has neighbours. Beyond that, the peer whose
last replay is oldest is forgotten."""


@dataclass(slots=True)
class ReplayedHeartbeats:
    _counts: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """For each peer: the number of counted replays, and the time of the last one."""

    def __len__(self) -> int:
        """Return the number of peers that are counted."""
        return len(self._counts)

    def note_replay(
        self,
        forwarder: PeerId,
        author: PeerId,
        spoke: IncarnationSpan | None,
        forwarder_since_s: float | None,
        now: float,
    ) -> bool:
        """Note that `forwarder` sent an outdated heartbeat of `author`. Return whether to report
        `forwarder`.

        `spoke` is when the first and the newest heartbeat since the author's last start arrived.
        `forwarder_since_s` is when the first heartbeat since the forwarder's last start arrived.
        Each is None if no such heartbeat arrived.

        An author that sends its own old heartbeats is not counted, because this happens without
        malice if its directory was restored or copied.
        """
        if forwarder == author or spoke is None or forwarder_since_s is None:
            return False
        if spoke.last_s < max(spoke.first_s, forwarder_since_s) + SPREAD_S:
            return False
        times, last_s = self._counts.pop(forwarder, (0, float("-inf")))
        if now >= last_s + APART_S:
            times, last_s = times + 1, now
        self._counts[forwarder] = times, last_s
        if len(self._counts) > FORWARDERS_MAX:
            del self._counts[next(iter(self._counts))]
        return times >= TIMES
