"""Find peers that forward heartbeats from before their author's last start.

An honest peer does not forward a heartbeat that it knows to be older than its author's newest
start. So a peer that forwards replayed heartbeats either replays them, or has not yet heard of that
start. A peer of the second kind hears of it within seconds. So a peer is reported if it forwarded
replayed heartbeats three times, at least `APART_S` apart, and if the author's newest start had been
sending for `SPREAD_S` while the peer was connected. The report is a hint for users and has no other
effect. It is certain that the peer forwarded the heartbeats, but not that it did so knowingly.

This module does no I/O: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.peers.incarnations import SPREAD_S, IncarnationSpan

APART_S = 10.0
"""Minimum seconds between two counted replays: the longest time between two heartbeats in a run of
a hundred."""

TIMES = 3

FORWARDERS_MAX = 512
"""Maximum number of peers counted: as many as a node has neighbours. Beyond that, the peer that was
noted longest ago is dropped."""


@dataclass(slots=True)
class ReplayedHeartbeats:
    _counts: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """For each peer: how often it was counted, and when it last was."""

    def __len__(self) -> int:
        """The number of peers that are counted."""
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

        `spoke` is when the newest start of the author was first and last heard here.
        `forwarder_since_s` is when the newest start of the forwarder was first heard. Each of these
        is None if no such heartbeat was heard.

        An author that sends its own old heartbeats is not counted: its directory was restored or
        copied.
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
