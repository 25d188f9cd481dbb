"""Check the rules about delegated votes (SPEC.md, F6 and F7) without the ledger's own code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.messages.messages import Message, Propose
from p2ptrain.simulation.checkers.founders_watch import WELL_S, delegates_at
from p2ptrain.simulation.checkers.proposals import is_quorum
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk

ROSTERS_MAX = 4
"""Number of rosters that may open a reduce with a voter that is gone. A liar may propose some. So
may a voter that has restarted since then and measures the absence anew."""

ADMITTED_S = 40.0
ADMITTED_ENTRIES = 8
"""A healthy volunteer must be a member after this time and this many entries. A liar and a voter
that is gone can delay one entry for minutes, and a reduce admits nobody."""

COMMITS = 8
"""Number of commits after which a healthy member must have contributed. Sybils can get it left out
of some attempts, and it sits out while others doubt it."""


@dataclass(slots=True)
class RevokedLeave(Watch):
    """F6: a roster has no voter whose vote was revoked, unless too few others would remain."""

    rules: Rules

    def on_decision(self, decision: Decision) -> None:
        value, before = decision.value, decision.before
        if not isinstance(value, Roster):
            return
        entitled = {*self.rules.founders, *delegates_at(before, before.step)}
        stays = [voter for voter in value.voters if voter not in entitled]
        others = entitled.intersection((*before.voters, *value.voters))
        least = 4 if self.rules.quorum == "two-thirds" else 3
        if len(stays) > max(0, min(least, len(self.rules.founders)) - len(others)):
            self.object(f"{stays[0]} still votes after entry {decision.after.height}")


@dataclass(slots=True)
class RevocationsAreBorne(Watch):
    """F6: if a roster names an amendment, the voters that keep their votes and are up are a quorum.
    A peer counts as down if it has been away for so long that every voter knows it. With liars
    among the voters, later rounds are exempt."""

    rules: Rules
    troubles: Troubles
    liars: frozenset[PeerId]

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.value, decision.certified.certificate.round
        if not decision.is_first or not isinstance(value, Roster) or value.terms is None:
            return
        if value.terms.voters is None or (round and self.liars.intersection(value.voters)):
            return
        may_vote = {*self.rules.founders, *value.terms.voters}
        left = tuple(voter for voter in decision.before.voters if voter in may_vote)
        now, went = self.troubles.now, self.troubles.went
        up = {it for it in left if it in self.troubles.since or went[it] + WELL_S > now}
        if not left or not is_quorum(self.rules, left, up):
            self.object(f"entry {decision.after.height} revokes so many votes that the run stops")


@dataclass(slots=True)
class DelegatesMayVanish(Watch):
    """F6: if all new delegates of a roster vanish, the others that are up are still a quorum. With
    liars among the voters, any number of them may have been proposed. The voters that were up when
    the roster was first proposed decide, since some may go before it is decided.

    A peer that has just started does not know which peers are down. A roster that it proposed is
    exempt if its voters had just started, too, or accepted it in a later round (R5: doubts end)."""

    rules: Rules
    troubles: Troubles
    liars: frozenset[PeerId]
    gone: dict[Digest, frozenset[PeerId]] = field(default_factory=dict)
    """For each entry, the peers that were known to be down when it was first proposed."""

    new: dict[Digest, frozenset[PeerId]] = field(default_factory=dict)
    """For each entry whose proposer had just started, the peers that had just started as well."""

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Propose) and message.entry.digest not in self.gone:
            now, since = self.troubles.now, self.troubles.since
            new = frozenset(peer for peer, start in since.items() if start + WELL_S > now)
            self.gone[message.entry.digest] = self.troubles.away_for(WELL_S)
            if voter in new:
                self.new[message.entry.digest] = new

    def on_decision(self, decision: Decision) -> None:
        before, after = decision.before, decision.after
        new = set(after.voters) - set(before.voters) - set(self.rules.founders)
        if not decision.is_first or not new or self.liars.intersection(before.voters):
            return
        digest, certificate = decision.certified.entry.digest, decision.certified.certificate
        new_peers = self.new.get(digest)
        if new_peers is not None and (certificate.round or new_peers >= certificate.voters):
            return
        lost = self.gone.get(digest, self.troubles.away_for(WELL_S))
        if not is_quorum(self.rules, after.voters, set(after.voters) - new - lost):
            self.object(f"entry {after.height} makes voters of {len(new)} delegates at once")


@dataclass(slots=True)
class TheAbsentAreReplaced(Watch):
    """F7: a voter that is gone for good does not keep its vote, if enough others remain. It counts
    as gone once every voter has noticed, before members begin to agree on the roster. `named_s` is
    the time at which there were delegates for the first time, `last_s` that of the last entry.
    """

    rules: Rules
    troubles: Troubles
    named_s: float | None = None
    last_s: float = 0.0
    kept: Counter[PeerId] = field(default_factory=Counter)

    def on_decision(self, decision: Decision) -> None:
        value, before = decision.value, decision.before
        if not decision.is_first:
            return
        begun_s, self.last_s = self.last_s, self.troubles.now
        if self.named_s is None and delegates_at(before, before.step):
            self.named_s = self.troubles.now
        opens = isinstance(value, Roster) and value.participants and len(value.voters) > 3
        if self.named_s is None or not opens or not delegates_at(before, before.step):
            return
        for voter in decision.after.voters:
            gone_s = max(self.named_s, self.troubles.left.get(voter, begun_s))
            is_gone = gone_s + self.rules.absent_s + WELL_S <= begun_s
            if voter in self.troubles.since or not is_gone:
                self.kept.pop(voter, None)
                continue
            self.kept[voter] += 1
            if self.kept[voter] > ROSTERS_MAX:
                height = decision.after.height
                self.object(f"{voter} is gone, but keeps its vote at height {height}")


@dataclass(slots=True)
class VolunteersTrain(Watch):
    """A volunteer that is healthy becomes a member and contributes, also without any founder. Liars
    and seeds are exempt."""

    troubles: Troubles
    exempt: frozenset[PeerId]
    told: set[PeerId] = field(default_factory=set)
    missed: Counter[PeerId] = field(default_factory=Counter)
    outside: Counter[tuple[PeerId, float]] = field(default_factory=Counter)
    """The number of entries without each peer since the time at which it became healthy."""

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first:
            return
        after, now = decision.after, self.troubles.now
        for peer in after.members:
            is_well = peer in self.troubles.since and decision.before.is_member(peer)
            if not is_well or peer in after.tokens_by_peer:
                self.missed.pop(peer, None)
            elif isinstance(decision.value, Commit):
                self.missed[peer] += 1
                self._expect(self.missed[peer] <= COMMITS, peer, "has not trained", after)
        for peer, since in self.troubles.since.items():
            if after.is_member(peer):
                self.outside.pop((peer, since), None)
                continue
            self.outside[peer, since] += 1
            early = now <= since + ADMITTED_S or self.outside[peer, since] <= ADMITTED_ENTRIES
            self._expect(early, peer, "is not a member", after)

    def _expect(self, holds: bool, peer: PeerId, what: str, state: LedgerState) -> None:
        if not holds and peer not in self.told and peer not in self.exempt:
            self.told.add(peer)
            self.object(f"{peer} {what} at height {state.height}")


def checkers_of_delegation(
    rules: Rules, liars: frozenset[PeerId], troubles: Troubles, seeds: frozenset[PeerId]
) -> list[Watch]:
    return [
        RevokedLeave(rules),
        RevocationsAreBorne(rules, troubles, liars),
        DelegatesMayVanish(rules, troubles, liars),
        TheAbsentAreReplaced(rules, troubles),
        VolunteersTrain(troubles, liars | seeds),
    ]
