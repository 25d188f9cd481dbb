"""Remember what voters signed recently, to detect a voter that contradicts itself.

This costs almost nothing while all voters are honest: a voter's first statement about a height is
only stored, and signatures are checked when a second, different statement arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.values import Certificate, Certified, LineId
from p2ptrain.ledger.messages.evidence import Evidence, Statement, contradict
from p2ptrain.ledger.messages.messages import Accept, Message, Promise, PromiseProof, Propose
from p2ptrain.ledger.paxos.electorate import proof_of

HEIGHTS_KEPT = 4
"""Number of heights whose statements are kept: the current height and the three before it, for
which late votes and promises still arrive.
"""

STATEMENTS_MAX = 16
"""Maximum number of statements kept for a voter and height: two (promise, vote) in eight rounds."""


@dataclass(slots=True)
class _Logged:
    """A statement. `genuine`: its signature has been checked and is valid."""

    statement: Statement
    genuine: bool


@dataclass(slots=True)
class StatementLog:
    """The statements received about one line (the run, or a branch), by height and peer."""

    line: LineId
    verify: Verify
    _memory: dict[int, dict[PeerId, list[_Logged]]] = field(default_factory=dict)

    def note(
        self, height: int, peer: PeerId, statement: Statement, *, genuine: bool = False
    ) -> Evidence | None:
        """Store a statement. Return evidence if it contradicts an earlier one of `peer`.

        `genuine`: its signature has been checked. Otherwise it is checked if `peer` signed another
        statement about this height, and forged statements are dropped.
        """
        heard = self._memory.setdefault(height, {}).setdefault(peer, [])
        if any(each.statement == statement for each in heard):
            return None
        said = _Logged(statement, genuine)
        if heard:
            heard[:] = [each for each in heard if self._is_genuine(height, peer, each)]
            if not self._is_genuine(height, peer, said):
                return None
        heard.append(said)
        del heard[:-STATEMENTS_MAX]
        for each in heard:
            if contradict(each.statement, statement):
                return Evidence(self.line, height, peer, each.statement, statement)
        return None

    def compare(self, ours: Certified, theirs: Certified) -> list[Evidence]:
        """Return evidence against each voter whose votes for two different entries of one height
        are in these certificates. Stop at the first forged signature in `theirs`, so that a forged
        certificate costs one check.
        """
        height, mine = ours.entry.height, dict(statements_of(ours.certificate))
        found = []
        for peer, statement in statements_of(theirs.certificate):
            if peer not in mine or not contradict(mine[peer], statement):
                continue
            if not self._is_genuine(height, peer, _Logged(statement, genuine=False)):
                break
            found.append(Evidence(self.line, height, peer, mine[peer], statement))
        return found

    def entered(self, height: int) -> None:
        """Record that `height` is decided: forget the statements about much lower heights."""
        for old in [each for each in self._memory if each + HEIGHTS_KEPT <= height]:
            del self._memory[old]

    def _is_genuine(self, height: int, peer: PeerId, heard: _Logged) -> bool:
        if not heard.genuine:
            message = heard.statement.message(self.line, height)
            heard.genuine = self.verify(peer, message, heard.statement.signature)
        return heard.genuine


ProposerOf = Callable[[int], PeerId]
"""proposer(round) returns the voter that proposes in that round of the message's height."""


def statements_in(
    sender: PeerId, message: Message, proposer: ProposerOf
) -> Iterator[tuple[PeerId, Statement]]:
    """Yield the signed statements in a consensus message, with the peers that are said to have
    signed them. A proposal contains its proposer's vote, even if another peer forwards it.
    """
    match message:
        case Accept(vote) if vote.voter == sender:
            yield sender, Statement(None, vote.round, vote.entry, vote.signature)
        case Promise(_, round):
            yield from _promised(round, proof_of(sender, message), proposer)
        case Propose(round, entry, signature, promises):
            yield proposer(round), Statement(None, round, entry.digest, signature)
            for proof in promises:
                yield from _promised(round, proof, proposer)
        case _:
            return


def _promised(
    round: int, proof: PromiseProof, proposer: ProposerOf
) -> Iterator[tuple[PeerId, Statement]]:
    last, entry, proposed = proof.accepted_round, proof.accepted, proof.proposed
    yield proof.voter, Statement(round, last, entry, proof.signature)
    if last is not None and proposed is not None:
        yield proposer(last), Statement(None, last, entry, proposed)


def statements_of(certificate: Certificate) -> Iterator[tuple[PeerId, Statement]]:
    """Yield the votes of a certificate as statements."""
    for voter, signature in certificate.votes:
        yield voter, Statement(None, certificate.round, certificate.entry, signature)
