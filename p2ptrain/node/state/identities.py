"""What a node knows of starts: its own, those of its peers, and who mixes them up."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import SystemRandom

import trio

from p2ptrain.eviction import IsMember
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import RunId
from p2ptrain.node.state.changes import Changes
from p2ptrain.peers.duplicate_watch import DuplicateWatch
from p2ptrain.peers.identity_desk import IdentityDesk
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.peers.replayed_heartbeats import Replays


@dataclass(slots=True)
class Identities:
    """One for each life of a node. `watch`, `desk` and `news` are written by `duplicate_identity`,
    `incarnations` by `gossip`, and `replays` by `staleness`.
    """

    watch: DuplicateWatch
    """Whether this process is the only one with its identity; it knows our incarnation."""
    incarnations: Incarnations
    """The newest starts of other peers."""
    desk: IdentityDesk
    """What other peers ask, and what waits for them here."""
    news: Changes = field(default_factory=Changes)
    """Rings when somebody asked or answered whether we are alone."""
    replays: Replays = field(default_factory=Replays)
    since_s: float = field(default_factory=trio.current_time)
    """When this life began, by the local monotonic clock."""

    @classmethod
    def of(
        cls, identity: Identity, run: RunId, incarnation: int, is_member: IsMember
    ) -> Identities:
        """Those of a node that has just taken this incarnation."""
        random = SystemRandom()
        watch = DuplicateWatch(identity.peer, run, incarnation, identity.sign, verify, random)
        incarnations = Incarnations(is_member)
        return cls(watch, incarnations, IdentityDesk(incarnations, is_member))

    @property
    def incarnation(self) -> int:
        """Ours."""
        return self.watch.incarnation
