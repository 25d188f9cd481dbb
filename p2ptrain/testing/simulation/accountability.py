"""Liars: what they signed is held against them, and only against them.

A voter that lies can fork a run of majorities. It cannot do so without signing two words that
contradict each other, and whoever has both can show them to anybody. So a fork is a violation
unless this checker, from signed words alone, can name a liar for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.messages import Accept, Message, Promise, Propose
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.values import promise_message, vote_message
from p2ptrain.testing.simulation.disk import Disk, verify
from p2ptrain.testing.simulation.watching import Decision, Watch

Place = tuple[PeerId, int]


@dataclass(slots=True)
class LiarsAreExposed(Watch):
    """`proofs`: by peer and height, the two signed words that contradict each other. `forks`: the
    heights at which two entries are certified, each with the liars who are proved to have made it.

    A promise (p, a) says: for rounds below p my last vote is that of round a.
    """

    rules: Rules | None = None
    liars: frozenset[PeerId] = frozenset()
    proofs: dict[Place, str] = field(default_factory=dict)
    forks: list[str] = field(default_factory=list)
    entries: dict[int, Digest] = field(default_factory=dict)
    votes: dict[Place, dict[int, Digest]] = field(default_factory=dict)
    promises: dict[Place, set[tuple[int, int]]] = field(default_factory=dict)

    def on_vote(self, voter: PeerId, message: Message, disk: Disk) -> None:
        if isinstance(message, Accept):
            vote = message.vote
            self._vote(vote.voter, vote.height, vote.round, vote.entry, vote.signature)
        elif isinstance(message, Promise):
            self._promise(voter, message)
        elif isinstance(message, Propose):
            entry = message.entry
            self._vote(voter, entry.height, message.round, entry.digest, message.signature)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first:
            return
        certificate = decision.certified.certificate
        height, entry = certificate.height, certificate.entry
        for voter, signature in certificate.votes:
            self._vote(voter, height, certificate.round, entry, signature)
        if self.entries.setdefault(height, entry) != entry:
            self._fork(height)

    def excuses(self, height: int) -> bool:
        """Whether a fork there is no fault of the ledger: liars made it, and it can be shown."""
        assert self.rules is not None
        return self.rules.quorum == "majority" and bool(self._guilty(height))

    def _guilty(self, height: int) -> list[PeerId]:
        return sorted(peer for peer, at in self.proofs if at == height and peer in self.liars)

    def _fork(self, height: int) -> None:
        guilty = ", ".join(self._guilty(height)) or "nobody"
        self.forks.append(f"height {height} has two entries; proved guilty: {guilty}")
        if not self.excuses(height):
            self.object(self.forks[-1])

    def _vote(self, voter: PeerId, height: int, round: int, entry: Digest, signed: bytes) -> None:
        assert self.rules is not None
        if not verify(voter, vote_message(self.rules.run, height, round, entry), signed):
            return
        place = (voter, height)
        known = self.votes.setdefault(place, {}).setdefault(round, entry)
        if known != entry:
            self._expose(place, f"votes for {known[:8]} and {entry[:8]} in round {round}")
        for promised, last in self.promises.get(place, ()):
            if last < round < promised:
                self._expose(place, f"a vote in round {round} and a promise of {promised}")

    def _promise(self, voter: PeerId, promise: Promise) -> None:
        assert self.rules is not None
        had = promise.accepted
        last, entry = (None, None) if had is None else (had.round, had.entry.digest)
        said = promise_message(self.rules.run, promise.height, promise.round, last, entry)
        if not verify(voter, said, promise.signature):
            return
        place, low = (voter, promise.height), -1 if last is None else last
        self.promises.setdefault(place, set()).add((promise.round, low))
        for round in self.votes.get(place, {}):
            if low < round < promise.round:
                self._expose(place, f"a promise of {promise.round} and a vote in round {round}")

    def _expose(self, place: Place, words: str) -> None:
        if place not in self.proofs:
            self.proofs[place] = words
            if place[0] not in self.liars:
                self.object(f"{place[0]}, who is honest, signed {words} at {place[1]}")
