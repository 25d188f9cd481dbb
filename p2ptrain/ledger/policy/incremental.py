"""Recognise reports that cannot change what to propose: thousands of members report, few reports
decide.

The next proposal is computed from all members' reports, in time proportional to their number. Most
reports do not change it. A tally, made together with the proposal, recognises these:

- While members train and nothing is wanted: a further member is ready. It is neither the last one
  awaited nor the last one awaited for long, and it completes neither the quorum nor the needed
  contributors.
- While a reduce is under way and nothing is wanted: a member is ready, for this step or the next.
  Also one more participant abandons the reduce, unless it is the first or the last. Also one more
  has a result, unless it is this node, or decides whether most have the same.
- While a commit is wanted: one more participant made the same update, or a member is ready. Also a
  participant abandoned the reduce, if most have made the update.
- While another attempt is wanted: one more participant abandoned the reduce, unless it accuses
  somebody.
- In all of these cases but the third: a snapshot was written.

A tally decides this in time that does not grow with the number of members. In any other case it
says that it cannot tell, and everything is computed anew. Time alone changes nothing before
`Wish.look_again_at`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

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


class Tally(Protocol):
    """Says whether the last result still holds. The result holds as long as the tally absorbs every
    event.
    """

    def absorbs(self, event: AnyReport) -> bool:
        """Take an event in. Return False if the proposal may change, or if the tally cannot
        tell.
        """


# ── while members train ──────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class ReadyTally:
    """The tally while members train and nothing is wanted yet."""

    rules: Rules
    state: LedgerState
    voters: frozenset[PeerId]
    awaited: set[PeerId]
    punctual: set[PeerId]
    """The awaited members for which the others wait long."""
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


# ── while a reduce is under way ──────────────────────────────────────────────────────────────────


def tally_of_reduce(state: LedgerState, reports: Reports, wish: Wish) -> Tally:
    """Return the tally that fits `wish` and the reports about the reduce under way."""
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
    """A result is known, and its commit is wanted. `agreed`: most participants made it."""

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
    """No result is known. `silent` are the participants that have not reported yet. `failing`: the
    reduce is known to have failed.
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
        """Return whether a participant has a result, and it is still open which result most
        have.
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
    """The reduce failed and is to be tried again or skipped. The next participants depend on the
    accusations.
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
