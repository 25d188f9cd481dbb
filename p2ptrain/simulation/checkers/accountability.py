"""Check that every fork can be proved to be the fault of a liar.

In a run with majority quorums, a lying voter can cause a fork. To do so it must sign two messages
that contradict each other, and these two messages are a proof. So a fork is a violation unless this
checker can name a liar from signed messages alone. The messages must be about an entry of that
fork: an unrelated lie at the same height does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Branch, LineId, vote_message
from p2ptrain.ledger.messages.messages import Accept, Message, Promise, Propose
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk, verify

Place = tuple[PeerId, LineId, int]
"""A voter, with the line and height that its message is about."""


@dataclass(slots=True)
class LiarsAreExposed(Watch):
    """A line is the run itself or one of its branches. `proofs` maps peer, line and height to the
    first contradiction that the peer signed there, in words. `about` maps the same key to the
    entries that the contradictions are about.

    `forks` lists the heights at which two entries are certified, with the liars that are proved
    guilty of each.

    A promise (p, a) states that, among the rounds below p, its voter last voted in round a.
    """

    lines: Lines
    rules: Rules
    liars: frozenset[PeerId] = frozenset()
    proofs: dict[Place, str] = field(default_factory=dict)
    about: dict[Place, set[Digest]] = field(default_factory=dict)
    forks: list[str] = field(default_factory=list)
    entries: dict[tuple[LineId, int], Digest] = field(default_factory=dict)
    votes: dict[Place, dict[int, Digest]] = field(default_factory=dict)
    promises: dict[Place, set[tuple[int, int]]] = field(default_factory=dict)

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Accept):
            vote = message.vote
            self._vote((vote.voter, vote.line, vote.height), vote.round, vote.entry, vote.signature)
        elif isinstance(message, Promise):
            self._promise(voter, message)
        elif isinstance(message, Propose):
            place = (voter, self.lines.of_proposal(message), message.height)
            self._vote(place, message.round, message.entry.digest, message.signature)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or isinstance(decision.value, Branch):
            return
        certificate = decision.certified.certificate
        line, height, entry = decision.before.line, certificate.height, certificate.entry
        for voter, signature in certificate.votes:
            self._vote((voter, line, height), certificate.round, entry, signature)
        first = self.entries.setdefault((line, height), entry)
        if first != entry:
            self._fork(height, {first, entry})

    def excuses(self, height: int, entries: set[Digest]) -> bool:
        """Return whether liars are proved to have caused the fork of `entries` at `height`, so that
        it is not the ledger's fault."""
        return self.rules.quorum == "majority" and bool(self._guilty(height, entries))

    def _guilty(self, height: int, entries: set[Digest]) -> list[PeerId]:
        return sorted(
            peer
            for (peer, _, at), about in self.about.items()
            if at == height and peer in self.liars and about & entries
        )

    def _fork(self, height: int, entries: set[Digest]) -> None:
        guilty = ", ".join(self._guilty(height, entries)) or "nobody"
        self.forks.append(f"height {height} has two entries; proved guilty: {guilty}")
        if not self.excuses(height, entries):
            self.object(self.forks[-1])

    def _vote(self, place: Place, round: int, entry: Digest, signed: bytes) -> None:
        voter, line, height = place
        if not verify(voter, vote_message(line, height, round, entry), signed):
            return
        known = self.votes.setdefault(place, {}).setdefault(round, entry)
        if known != entry:
            words = f"votes for {known[:8]} and {entry[:8]} in round {round}"
            self._expose(place, words, {known, entry})
        for promised, last in self.promises.get(place, ()):
            if last < round < promised:
                self._expose(place, f"a vote in round {round} and a promise of {promised}", {entry})

    def _promise(self, voter: PeerId, promise: Promise) -> None:
        line = self.lines.of_promise(voter, promise)
        if line is None:
            return
        place, had = (voter, line, promise.height), promise.accepted
        low = -1 if had is None else had.round
        self.promises.setdefault(place, set()).add((promise.round, low))
        for round, entry in self.votes.get(place, {}).items():
            if low < round < promise.round:
                words = f"a promise of {promise.round} and a vote in round {round}"
                self._expose(place, words, {entry})

    def _expose(self, place: Place, words: str, entries: set[Digest]) -> None:
        self.about.setdefault(place, set()).update(entries)
        if place not in self.proofs:
            self.proofs[place] = words
            if place[0] not in self.liars:
                self.object(f"{place[0]}, who is honest, signed {words} at height {place[2]}")
