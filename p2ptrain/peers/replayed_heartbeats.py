"""Find peers that pass on heartbeats from before their author's last start.

No honest peer passes on a heartbeat that it knows to be older than its author's newest start. So
replayed heartbeats come from the peer that replays them, or from one that has not yet heard of that
start. The second kind of peer hears of it within seconds. So a peer is named if it did so three
times, each at least `APART_S` after the one before, and if the author's newest start went on
sending for `SPREAD_S` while the peer was here. The name is a hint for people and decides nothing.
It is certain that the peer passed the heartbeats on, but not that it did so knowingly.

Sans-IO: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.peers.incarnations import SPREAD_S, IncarnationSpan

APART_S = 10.0
"""Seconds between two counted replays: the longest time between two heartbeats in a run of a
hundred.
"""

TIMES = 3

FORWARDERS_MAX = 512
"""Peers counted: as many as a node has neighbours. The one counted last stays longest."""


@dataclass(slots=True)
class ReplayedHeartbeats:
    _counts: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """For each peer: how often it was counted, and when last."""

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
        """Note that `forwarder` brought an outdated heartbeat of `author`. Return whether to name
        it.

        `spoke` is when the newest start of the author was first and last heard here.
        `forwarder_since_s` is when the newest start of the forwarder was first heard. Either is
        None if none was heard.

        An author that brings its own heartbeats replays nothing: its home was restored, or copied.
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
