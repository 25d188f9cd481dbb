"""Incarnations of this node and of its peers, and the search for a duplicate of this identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import SystemRandom

import trio

from p2ptrain.eviction import IsMember
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import RunId
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.first_question import FirstQuestion
from p2ptrain.peers.duplicate_watch import DuplicateWatch
from p2ptrain.peers.identity_mailboxes import IdentityMailboxes
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.peers.replayed_heartbeats import ReplayedHeartbeats


@dataclass(slots=True)
class Identities:
    """The state of one life of a node. `duplicate_identity` writes `watch`, `desk` and `news`;
    `gossip` writes `incarnations`; `outdated_heartbeats` writes `replays`.
    """

    watch: DuplicateWatch
    """Decides whether this process is the only one with its identity. Holds our incarnation."""
    incarnations: Incarnations
    """The newest incarnation of each other peer."""
    desk: IdentityMailboxes
    """Questions of other peers, and notes that wait for them here."""
    first_question: FirstQuestion
    """Holds back the first messages of the ledger. `duplicate_identity` ends it."""
    news: Changes = field(default_factory=Changes)
    """Rings when a peer asked or answered whether we are alone."""
    replays: ReplayedHeartbeats = field(default_factory=ReplayedHeartbeats)
    since_s: float = field(default_factory=trio.current_time)
    """When this life began, by the local monotonic clock, in seconds."""

    @classmethod
    def of(
        cls,
        identity: Identity,
        run: RunId,
        incarnation: int,
        is_member: IsMember,
        *,
        members_answered: bool,
    ) -> Identities:
        """Return the state of a node that has just taken this incarnation. `members_answered`: it
        has already asked members whether it is alone.
        """
        random = SystemRandom()
        watch = DuplicateWatch(identity.peer, run, incarnation, identity.sign, verify, random)
        incarnations = Incarnations(is_member)
        desk = IdentityMailboxes(incarnations, is_member)
        return cls(watch, incarnations, desk, FirstQuestion(answered=members_answered))

    @property
    def incarnation(self) -> int:
        """This process's own incarnation."""
        return self.watch.incarnation
