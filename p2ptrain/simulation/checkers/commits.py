"""Check Commits (S3 and S12 in SPEC.md): voters hold the update's bytes, and a reduce made them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.ledger.messages.messages import Accept, Message, Propose
from p2ptrain.simulation.checkers.proposals import is_quorum
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk
from p2ptrain.simulation.liars.spoiling import update_apart
from p2ptrain.simulation.rings import update_of


@dataclass(slots=True)
class CommitsAreHeld(Watch):
    """S3: every honest voter in the certificate of a Commit has the update on disk."""

    liars: frozenset[PeerId] = frozenset()

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        if isinstance(value, Commit):
            for voter in decision.certified.certificate.voters - self.liars:
                if value.update not in decision.disks[voter].updates:
                    self.object(f"{voter} voted for update {value.update[:8]} without holding it")


@dataclass(slots=True)
class CommitsAreMade(Watch):
    """S12: a committed update is the result of the reduce, unless most participants lie. If there
    are `spoilers`, which may send a different average to each participant, the result of any
    participant is also allowed.

    Even if only a minority lies, an invented update can be committed in a later round: a liar that
    led an earlier round claims to have accepted it there, and other voters are down, so it may be
    chosen (R5). Then each honest vote for it must have a reason: a proposal with promises that name
    it, and those that do not back it are not a quorum."""

    rules: Rules
    liars: frozenset[PeerId] = frozenset()
    spoilers: Collection[PeerId] = ()
    shown: dict[tuple[int, Digest], list[Propose]] = field(default_factory=dict)
    voted: dict[Digest, dict[int, PeerId]] = field(default_factory=dict)

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Propose) and isinstance(message.entry.value, Commit):
            known = self.shown.setdefault((message.round, message.entry.digest), [])
            known += [] if message in known else [message]
            self._note(voter, message.round, message.entry.digest)
        elif isinstance(message, Accept):
            self._note(voter, message.vote.round, message.vote.entry)

    def _note(self, voter: PeerId, round: int, entry: Digest) -> None:
        if voter not in self.liars:
            self.voted.setdefault(entry, {}).setdefault(round, voter)

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.value, decision.certified.certificate.round
        roster, height = decision.before.roster, decision.after.height
        if not isinstance(value, Commit) or roster is None:
            return
        if 2 * len(self.liars.intersection(roster.peers)) > len(roster.peers):
            return
        made = update_of(decision.before.head)
        apart = [update_apart(made, peer) for peer in roster.peers] if self.spoilers else []
        if value.update in (made, *apart):
            return
        if not self.liars or round == 0:
            self.object(f"entry {height} commits an update that the reduce did not produce")
        elif decision.is_first:
            self._require_reasons(decision)

    def _require_reasons(self, decision: Decision) -> None:
        entry, voters = decision.certified.entry.digest, decision.before.voters
        for round, voter in self.voted.get(entry, {}).items():
            shown = self.shown.get((round, entry), ())
            if not any(self._is_forced(it, voters) for it in shown):
                where = f"round {round} at height {decision.after.height}"
                self.object(f"{voter} votes for an invented update in {where} without need")

    def _is_forced(self, proposal: Propose, voters: Sequence[PeerId]) -> bool:
        """Return whether the promises name the entry, and do not show that it was not chosen."""
        entry = proposal.entry.digest
        rounds = [it.accepted_round or 0 for it in proposal.promises if it.accepted == entry]
        if not rounds:
            return False
        backing = max(rounds), entry
        others = [it for it in proposal.promises if (it.accepted_round, it.accepted) != backing]
        return not is_quorum(self.rules, voters, {it.voter for it in others})
