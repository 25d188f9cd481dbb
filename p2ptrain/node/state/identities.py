"""The incarnations of this node and its peers, and the search for a duplicate of this node.

An incarnation is a number that orders the starts of one identity. A duplicate is another process
that uses this node's identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import SystemRandom

import trio

from p2ptrain.eviction import IsMember
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import RunId
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.first_question import FirstQuestion
from p2ptrain.peers.duplicate_watch import USUAL_TIMING, DuplicateWatch, QuestionTiming
from p2ptrain.peers.identity_mailboxes import IdentityMailboxes
from p2ptrain.peers.incarnations import Incarnations
from p2ptrain.peers.replayed_heartbeats import ReplayedHeartbeats


@dataclass(slots=True)
class Identities:
    """The state of a node's identity while the node's context is open. `duplicate_identity` writes
    `watch`, `mailboxes` and `news`; `gossip` writes `incarnations`; `outdated_heartbeats` writes
    `replays`."""

    watch: DuplicateWatch
    """Finds out whether another process uses this identity. Contains our incarnation."""
    incarnations: Incarnations
    """The newest incarnation of each other peer."""
    mailboxes: IdentityMailboxes
    """The mailboxes for other peers that look for a duplicate of their own identity."""
    first_question: FirstQuestion
    """Holds back the ledger's first messages until `duplicate_identity` ends the hold."""
    news: Changes
    """Notified when an answer or a challenge about a duplicate of our identity arrives."""
    replays: ReplayedHeartbeats = field(default_factory=ReplayedHeartbeats)
    since_s: float = field(default_factory=trio.current_time)
    """When this state was created, by the local monotonic clock, in seconds."""

    @classmethod
    def of(
        cls,
        identity: Identity,
        run: RunId,
        incarnation: int,
        is_member: IsMember,
        news: Changes,
        timing: QuestionTiming = USUAL_TIMING,
        *,
        members_answered: bool,
    ) -> Identities:
        """Return the state of a node that has just taken `incarnation`. `members_answered`: whether
        at least one peer was asked, while the node was starting, if the node has a duplicate."""
        random = SystemRandom()
        watch = DuplicateWatch(
            identity.peer, run, incarnation, identity.sign, verify, random, timing=timing
        )
        incarnations = Incarnations(is_member)
        desk = IdentityMailboxes(incarnations, is_member)
        question = FirstQuestion(answered=members_answered, limit_s=timing.start_wait_s)
        return cls(watch, incarnations, desk, question, news)

    @property
    def incarnation(self) -> int:
        """This process's own incarnation."""
        return self.watch.incarnation
