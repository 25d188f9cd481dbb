"""Remember what voters signed recently, to detect a voter that contradicts itself.

This costs almost nothing while all voters are honest: a voter's first statement about a height is
only stored, and signatures are checked when a second, different statement arrives. Memory is
bounded: a few heights, and a few statements of each voter. The chain names everybody that was ever
a voter; statements of other peers are ignored, so they cannot fill the memory.
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
"""Number of heights whose statements are kept: the current height and the last few, for which late
votes and promises still arrive.
"""

STATEMENTS_MAX = 16
"""Maximum number of statements kept for one voter and height: a promise and a vote in each of eight
rounds."""


@dataclass(slots=True)
class _Logged:
    statement: Statement
    genuine: bool


_Statements = dict[int, dict[PeerId, list[_Logged]]]


@dataclass(slots=True)
class StatementLog:
    """The statements received about one line. Statements about an earlier line no longer matter."""

    line: LineId
    verify: Verify
    _memory: _Statements = field(default_factory=dict)

    def note(
        self, height: int, peer: PeerId, statement: Statement, *, genuine: bool = False
    ) -> Evidence | None:
        """Store a statement. Return evidence if it contradicts an earlier one of `peer`.

        `genuine`: its signature has been checked already.
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
        """Return evidence against each voter that signed both of these entries, if they differ.
        Stop at the first forged signature in `theirs`.
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
        """Note that `height` is decided: forget statements about much earlier heights."""
        for old in [each for each in self._memory if each + HEIGHTS_KEPT <= height]:
            del self._memory[old]

    def _is_genuine(self, height: int, peer: PeerId, heard: _Logged) -> bool:
        if not heard.genuine:
            message = heard.statement.message(self.line, height)
            heard.genuine = self.verify(peer, message, heard.statement.signature)
        return heard.genuine


ProposerOf = Callable[[int], PeerId]
"""proposer(round) returns the proposer of that round at the height of the message."""


def statements_in(
    sender: PeerId, message: Message, proposer: ProposerOf
) -> Iterator[tuple[PeerId, Statement]]:
    """Yield the signed statements in a consensus message. A proposal contains its proposer's vote,
    even if another peer forwards it.
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
