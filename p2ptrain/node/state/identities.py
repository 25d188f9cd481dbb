"""Incarnations of this node and of its peers, and the search for a duplicate of this identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import SystemRandom

import trio

from p2ptrain.eviction import IsMember
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import RunId
from p2ptrain.node.state.changes import Changes
from p2ptrain.peers.duplicate_watch import DuplicateWatch
from p2ptrain.peers.identity_mailboxes import IdentityMailboxes
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.peers.replayed_heartbeats import ReplayedHeartbeats


@dataclass(slots=True)
class Identities:
    """The state of a node from when its parts are opened until they are closed.
    `duplicate_identity` writes `watch`, `desk` and `news`; `gossip` writes `incarnations`;
    `outdated_heartbeats` writes `replays`.
    """

    watch: DuplicateWatch
    """Finds out whether another process has this identity. It has our incarnation."""
    incarnations: Incarnations
    """The newest incarnation of each other peer."""
    desk: IdentityMailboxes
    """The mailboxes for other peers that look for a duplicate of their own identity."""
    news: Changes = field(default_factory=Changes)
    """Rings when an answer or a challenge arrives about a duplicate of our identity."""
    replays: ReplayedHeartbeats = field(default_factory=ReplayedHeartbeats)
    since_s: float = field(default_factory=trio.current_time)
    """When this state was created, by the local monotonic clock, in seconds."""

    @classmethod
    def of(
        cls, identity: Identity, run: RunId, incarnation: int, is_member: IsMember
    ) -> Identities:
        """Return the state of a node that has just taken this incarnation."""
        random = SystemRandom()
        watch = DuplicateWatch(identity.peer, run, incarnation, identity.sign, verify, random)
        incarnations = Incarnations(is_member)
        return cls(watch, incarnations, IdentityMailboxes(incarnations, is_member))

    @property
    def incarnation(self) -> int:
        """This process's own incarnation."""
        return self.watch.incarnation
