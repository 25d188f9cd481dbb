"""Recognise reports that cannot change what this node proposes.

The time to compute what to propose is proportional to the number of members, and in a run with a
thousand members, most reports change nothing. So each computation also makes a *tally*, which
recognises the following reports as changing nothing:

- While members train and this node has nothing to propose: a further awaited member is ready. The
  exceptions are the last awaited member, the last *punctual* one (for which the others wait the
  full grace period), and one that completes the quorum or the required number of contributors.
- During a reduce, while this node has nothing to propose: any member is ready. A participant
  abandoned the reduce, unless it is the first or the last to do so. A participant other than this
  node has a result that does not yet settle whether most participants have the same one.
- While this node proposes a Commit: a participant computed the same update, or a member is ready.
  A participant abandoned the reduce, if the reduce is already known to have failed and most
  participants have computed the update.
- While this node proposes another attempt or a Skip: a further participant abandoned the reduce and
  accuses no peer.
- In all of these cases except the third: a snapshot was written.

`absorbs` counts a report, in constant time, and returns whether it is one of these. After any other
report, and at the wish's `look_again_at`, what to propose is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.messages.peer_reports import (
    AnyReport,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
)
from p2ptrain.ledger.policy.participants import Readiness, fits_lease, suspicion_of
from p2ptrain.ledger.policy.reduce_results import update_votes_of
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.suspicion import Suspicion
from p2ptrain.ledger.policy.update_votes import UpdateVotes
from p2ptrain.ledger.policy.wish import Wish

# ── while members train ──────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class ReadyTally:
    """The tally while members train and this node has nothing to propose yet."""

    rules: Rules
    state: LedgerState
    voters: frozenset[PeerId]
    awaited: set[PeerId]
    punctual: set[PeerId]
    """The awaited members for which the others wait the full grace period (see `Readiness`)."""
    voters_ready: int
    first_ready: bool
    contributors: int
    enough: bool

    @staticmethod
    def of(rules: Rules, state: LedgerState, have: Readiness) -> ReadyTally:
        voters = frozenset(state.voters)
        return ReadyTally(
            rules=rules,
            state=state,
            voters=voters,
            awaited=set(have.awaited),
            punctual=set(have.punctual),
            voters_ready=len(have.ready & voters),
            first_ready=state.voters[0] in have.ready,
            contributors=len(have.contributors),
            enough=have.enough,
        )

    def absorbs(self, event: AnyReport) -> bool:
        if isinstance(event, SnapshotTaken):
            return True
        if not isinstance(event, Ready) or event.step != self.state.step:
            return False
        if event.peer not in self.awaited:
            return False
        self.awaited.discard(event.peer)
        self.contributors += fits_lease(self.rules, self.state, event)
        self.voters_ready += event.peer in self.voters
        self.first_ready = self.first_ready or event.peer == self.state.voters[0]
        was_last = self.punctual == {event.peer}
        self.punctual.discard(event.peer)
        return bool(self.awaited) and not was_last and self.enough == self._is_enough()

    def _is_enough(self) -> bool:
        policy, voters = self.rules.quorum, len(self.voters)
        return self.contributors >= self.rules.participants_min and quorum.is_enough(
            policy, voters, self.voters_ready, first_present=self.first_ready
        )


# ── during a reduce ──────────────────────────────────────────────────────────────────────────────


def tally_of_reduce(state: LedgerState, reports: Reports, wish: Wish) -> Tally:
    """Return the tally that fits `wish` and the reports about the current reduce."""
    roster, failing = state.roster, reports.failed_since is not None
    assert roster is not None
    votes = update_votes_of(state, reports)
    if isinstance(wish.value, Commit):
        return CommitTally(wish.value, failing, votes.agreed() is not None)
    if wish.waiting_for:
        return SilenceTally(roster, reports.me, set(wish.waiting_for), votes, failing)
    return FailureTally(roster, frozenset(roster.peers), suspicion_of(state, reports), failing)


@dataclass(slots=True)
class CommitTally:
    """The tally while this node proposes `commit`. `failing`: the reduce is known to have failed.
    `agreed`: most participants computed the update.
    """

    commit: Commit
    failing: bool
    agreed: bool

    def absorbs(self, event: AnyReport) -> bool:
        match event:
            case ReduceDone(_, step, attempt, update):
                wanted = self.commit
                return (step, attempt, update) == (wanted.step, wanted.attempt, wanted.update)
            case ReduceFailed():
                return self.failing and self.agreed
            case _:
                return isinstance(event, Ready)


@dataclass(slots=True)
class SilenceTally:
    """The tally while this node waits for reports. `silent` are the participants that are up and
    have not abandoned the reduce. `failing`: the reduce is known to have failed.
    """

    roster: Roster
    me: PeerId
    silent: set[PeerId]
    votes: UpdateVotes
    failing: bool

    def absorbs(self, event: AnyReport) -> bool:
        if isinstance(event, Ready | SnapshotTaken):
            return True
        if isinstance(event, ReduceDone):
            return self._is_one_of_few(event)
        if not self.failing or not _is_failure(event, self.roster):
            return False
        self.silent.discard(event.peer)
        self.votes.open.discard(event.peer)
        return bool(self.silent)

    def _is_one_of_few(self, event: ReduceDone) -> bool:
        """Return whether `event` is another participant's result, and does not settle whether most
        participants have the same result.
        """
        reduce = (self.roster.step, self.roster.attempt)
        if (event.step, event.attempt) != reduce or event.peer == self.me:
            return False
        if event.peer not in self.votes.open:
            return False
        self.votes.add(event.peer, event.update)
        return self.votes.agreed() is None and (self.failing or not self.votes.lost)


@dataclass(slots=True)
class FailureTally:
    """The tally while this node proposes another attempt or a Skip. The participants of the next
    attempt depend on the accusations. `failing`: the reduce is known to have failed.
    """

    roster: Roster
    participants: frozenset[PeerId]
    suspicion: Suspicion
    failing: bool

    def absorbs(self, event: AnyReport) -> bool:
        if isinstance(event, SnapshotTaken):
            return True
        if not self.failing or not _is_failure(event, self.roster):
            return False
        if event.peer not in self.participants or event.peer in self.suspicion.reporters:
            return False
        return not self.suspicion.add(event.peer, event.suspects)


def _is_failure(event: AnyReport, roster: Roster) -> TypeGuard[ReduceFailed]:
    reduce = (roster.step, roster.attempt)
    return isinstance(event, ReduceFailed) and (event.step, event.attempt) == reduce


Tally = ReadyTally | CommitTally | SilenceTally | FailureTally
