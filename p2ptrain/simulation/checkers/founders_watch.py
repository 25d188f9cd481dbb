"""Check the guarantees of open runs (SPEC.md, "Open runs") without the ledger's own code."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Branch, Roster
from p2ptrain.ledger.messages.messages import Message, Propose
from p2ptrain.simulation.checkers.proposals import is_quorum
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk

RETURN_S = 40.0
"""Seconds until a returned founder must be a voter again. A reduce that Sybils spoil takes three
attempts of 2.6 s, and voters are not admitted during that time. A replayed old goodbye also
withdraws the founder's request until the founder repeats it."""

WELL_S = 10.0
"""Seconds after which all voters know that a founder has returned."""


@dataclass(slots=True)
class OnlyFoundersVote(Watch):
    """F1: only founders and delegates are voters, and only their votes are in certificates. A
    delegate may vote until the first roster of the step that revokes it."""

    rules: Rules
    named: set[PeerId] = field(default_factory=set)
    """Peers that were ever delegates in the current outer step or an earlier one."""

    def on_decision(self, decision: Decision) -> None:
        founders, before = set(self.rules.founders), decision.before
        self.named |= delegates_at(before, before.step)
        strangers = set(decision.certified.certificate.voters) - founders - self.named
        if strangers:
            self.object(f"{min(strangers)} voted at height {decision.after.height}")
        if not founders.isdisjoint(decision.after.learners):
            self.object(f"a founder is a learner at height {decision.after.height}")

    def on_state(self, peer: PeerId, state: LedgerState) -> None:
        self.named |= delegates_at(state, state.step)
        strangers = set(state.voters) - set(self.rules.founders) - self.named
        if strangers:
            self.object(f"{peer} has {min(strangers)} as a voter at height {state.height}")


@dataclass(slots=True)
class FoundersKeepTheirVotes(Watch):
    """F2: a voter loses its vote only by its own goodbye while it is away, because it lied, because
    it was revoked (F6), or because it is gone and delegates replace it (F7).

    `said_goodbye` contains all founders that have ever left; the world fills it. With a liar among
    the voters, later rounds are exempt: the liar may have claimed that such a roster was already
    accepted. The time at which the roster was first proposed decides. A later proposer may
    have to propose it again long after the founder has returned.
    """

    rules: Rules
    said_goodbye: Container[PeerId]
    troubles: Troubles
    liars: frozenset[PeerId]
    proposed_s: dict[Digest, float] = field(default_factory=dict)
    gone: dict[Digest, frozenset[PeerId]] = field(default_factory=dict)
    """For each entry, the peers that had been away for long when it was first proposed."""

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Propose) and message.entry.digest not in self.gone:
            self.proposed_s[message.entry.digest] = self.troubles.now
            gone = self.troubles.away_for(self.rules.absent_s / 2)
            self.gone[message.entry.digest] = gone

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or not isinstance(decision.value, Roster):
            return
        if self.liars.intersection(decision.before.voters) and decision.certified.certificate.round:
            return
        named = delegates_at(decision.before, decision.before.step)
        for voter in decision.before.voters:
            if voter in decision.after.voters or voter in self.liars:
                continue
            if voter not in {*self.rules.founders, *named}:
                continue
            since = self.troubles.since.get(voter)
            proposed_s = self.proposed_s.get(decision.certified.entry.digest, self.troubles.now)
            is_well = since is not None and since + WELL_S < proposed_s
            was_gone = voter in self.gone.get(decision.certified.entry.digest, ())
            may_go = voter in self.said_goodbye or (bool(named) and was_gone)
            if is_well or not may_go:
                self.object(f"{voter} lost its vote at height {decision.after.height}")


@dataclass(slots=True)
class OneLossIsBorne(Watch):
    """F3: after the loss of any one voter, the others are a quorum, if the run has enough founders.
    An evicted liar counts as the lost voter."""

    rules: Rules
    liars: frozenset[PeerId]
    lying: set[PeerId] = field(default_factory=set)
    """Liars that were voters at some time."""

    def on_decision(self, decision: Decision) -> None:
        founders, voters = self.rules.founders, decision.after.voters
        if not self._survives(founders) or isinstance(decision.value, Branch):
            return
        self.lying |= self.liars.intersection(decision.before.voters)
        evicted = sorted(self.lying.difference(voters))
        if not self._survives((*voters, *evicted)):
            self.object(f"only {len(voters)} voters are left at height {decision.after.height}")

    def _survives(self, voters: tuple[PeerId, ...]) -> bool:
        return all(is_quorum(self.rules, voters, set(voters) - {lost}) for lost in voters)


@dataclass(slots=True)
class FoundersComeBack(Watch):
    """F4: a founder that has been healthy for some time is a voter."""

    rules: Rules
    troubles: Troubles
    liars: frozenset[PeerId]
    missed: set[PeerId] = field(default_factory=set)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first:
            return
        for founder in self.rules.founders:
            since = self.troubles.since.get(founder)
            if founder in self.liars or founder in decision.after.voters or since is None:
                self.missed.discard(founder)
            elif self.troubles.now > since + RETURN_S and founder not in self.missed:
                self.missed.add(founder)
                self.object(f"{founder} has been back since {since:.0f} s, but has no vote")


@dataclass(slots=True)
class OnlyThePresentReturn(Watch):
    """F4: a peer that has been away for some time does not become a voter."""

    rules: Rules
    troubles: Troubles
    away_since: dict[tuple[PeerId, int], float] = field(default_factory=dict)
    """Start of each absence, by peer and number of absences so far: a peer may return and leave
    again between two entries."""

    def on_decision(self, decision: Decision) -> None:
        now, well = self.troubles.now, self.troubles.since
        for peer in {*self.rules.founders, *decision.after.voters} - well.keys():
            absence = (peer, self.troubles.causes[peer])
            since = self.away_since.setdefault(absence, now)
            is_new = peer in decision.after.voters and peer not in decision.before.voters
            if is_new and decision.is_first and now > since + WELL_S:
                self.object(f"{peer} became a voter at {decision.after.height} while it was away")


def delegates_at(state: LedgerState, step: int) -> frozenset[PeerId]:
    """Return the peers with a delegated vote in outer step `step`, as far as `state` shows."""
    named: tuple[PeerId, ...] = ()
    for terms in state.terms:
        if terms.step <= step and terms.voters is not None:
            named = terms.voters
    return frozenset(named)


def checkers_of_open_runs(
    rules: Rules, liars: frozenset[PeerId], troubles: Troubles, said_goodbye: Container[PeerId]
) -> list[Watch]:
    checkers: list[Watch] = [
        OnlyFoundersVote(rules),
        FoundersKeepTheirVotes(rules, said_goodbye, troubles, liars),
        OneLossIsBorne(rules, liars),
        OnlyThePresentReturn(rules, troubles),
    ]
    # A lying founder may be as silent as an absent one. Then others need not be able to return.
    if liars.isdisjoint(rules.founders):
        checkers.append(FoundersComeBack(rules, troubles, liars))
    return checkers
