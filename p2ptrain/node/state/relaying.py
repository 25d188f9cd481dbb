"""The relay of this node, through which peers that cannot connect to each other exchange bytes, and
what this node knows about its own connections through other members' relays. Written by
`relaying/`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from p2ptrain.dataplane.relaying import RelayServer, RelayTotals, ReverseDials
from p2ptrain.ids import PeerId

REACHED_S = 600.0
"""Seconds for which a member counts as reached through a relay after the last connection."""

PEERS_MAX = 1024
"""Maximum number of members that are remembered."""

EXCUSES = 3
"""Number of relays through which attempts with a neighbour must fail in a row before the neighbour
is blamed as usual. One or two relays may be bad. A neighbour that fails through three of them is
more probably at fault itself, and must not spoil reduces for ever."""

FAULTS_MAX = 8
"""Maximum number of failed attempts that are remembered for each neighbour."""


@dataclass(slots=True)
class Relaying:
    server: RelayServer | None = None
    """None if this node does not relay."""
    reverse_dials: ReverseDials | None = None
    """Takes the calls of peers that this node has asked to dial it. None before it listens."""
    reached_s: dict[PeerId, float] = field(default_factory=dict)
    """When this node last had a connection with each member through a relay."""
    faults: dict[PeerId, tuple[PeerId, ...]] = field(default_factory=dict)
    """For each neighbour, the relays through which the attempts with it have failed since the last
    complete one, at most FAULTS_MAX, oldest first."""

    @property
    def offered(self) -> int:
        """The number of edges that this node offers to relay, free or in use."""
        return 0 if self.server is None else self.server.offered

    @property
    def totals(self) -> RelayTotals | None:
        """The bytes that this node has relayed; None if it does not relay."""
        return None if self.server is None else self.server.totals()

    def note_reached(self, peer: PeerId, now: float) -> None:
        """Note that a connection with `peer` goes through a relay. Any task may call this."""
        self.reached_s.pop(peer, None)
        self.reached_s[peer] = now
        if len(self.reached_s) > PEERS_MAX:
            del self.reached_s[next(iter(self.reached_s))]

    def reached(self, now: float) -> frozenset[PeerId]:
        """Return the members that were lately reached through a relay."""
        return frozenset(it for it, at_s in self.reached_s.items() if at_s > now - REACHED_S)

    def note_fault(self, peer: PeerId, relay: PeerId) -> None:
        """Note that an attempt with the neighbour `peer` failed through `relay`. Any task may call
        this."""
        before = self.faults.pop(peer, ())
        self.faults[peer] = (*before, relay)[-FAULTS_MAX:]
        if len(self.faults) > PEERS_MAX:
            del self.faults[next(iter(self.faults))]

    def note_success(self, peer: PeerId) -> None:
        """Note that an attempt with the neighbour `peer` was complete. Any task may call this."""
        self.faults.pop(peer, None)

    def is_exhausted(self, peer: PeerId, offers: Collection[PeerId]) -> bool:
        """Return whether the relays are no excuse for `peer` any more: attempts in a row have
        failed through EXCUSES different relays. If fewer members offer to relay, `offers`, then
        EXCUSES attempts in a row have failed, and all of these relays are among them."""
        faults = self.faults.get(peer, ())
        return len(faults) >= EXCUSES and self.were_all_tried(peer, offers)

    def were_all_tried(self, peer: PeerId, offers: Collection[PeerId]) -> bool:
        """Return whether another attempt with `peer` would only repeat a failure: the last attempts
        have failed through EXCUSES relays, or through all of `offers`."""
        used = set(self.faults.get(peer, ()))
        return len(used) >= EXCUSES or used >= set(offers)
