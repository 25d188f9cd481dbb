"""Describe a wait of a node: for which peers, since when, until when, and what happens then.

The log, the status and programs all show the same facts. This module does not know where they come
from, and never changes what a node does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.observe.states import duration

NAMED_MAX = 5
"""Maximum number of peers in a sentence. The JSON form has all of them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the ledger. Times are in Unix seconds."""

    reason: str
    since: float
    peers: tuple[PeerId, ...] = ()
    """The peers that the members wait for. Empty if they wait for any peer, or for time to pass."""
    until: float | None = None
    """When the members decide even if nothing arrives; None if they wait for as long as needed."""
    then: str = ""
    """Words for the event at `until`, or at the end of the wait."""
    suspect: str = ""
    """The peer that is the likely cause, and why; empty if none is."""

    @property
    def who(self) -> str:
        """Return the reason and the names of the peers, if any."""
        names = ", ".join(map(peer_name, self.peers[:NAMED_MAX]))
        more = f" and {len(self.peers) - NAMED_MAX} more" if self.peers[NAMED_MAX:] else ""
        return f"{self.reason}: {names}{more}" if names else self.reason

    def words(self, now: float) -> str:
        """Return a sentence for the status. `now` is in Unix seconds."""
        since = f"since {clock_time(self.since)} ({duration(now - self.since)})"
        until = "" if self.until is None else f"until {clock_time(self.until)}"
        parts = (self.who, since, until, self.then, self.suspect)
        return "; ".join(part for part in parts if part)

    def to_json(self) -> dict[str, object]:
        """Return plain values for `status --json`."""
        return {
            "for": self.reason,
            "peers": list(self.peers),
            "names": [peer_name(peer) for peer in self.peers],
            "since": self.since,
            "until": self.until,
            "then": self.then,
            "suspect": self.suspect,
        }


def clock_time(unix_s: float) -> str:
    """Return the local time of day, such as "18:02:11"."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
