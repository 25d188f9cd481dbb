"""Proof that a peer lied: two signed statements that cannot both be true.

In most cases they are statements of a voter about one height. In a run with claims, they can also
be statements of a participant about its claims (`claim_statement`).

Each statement that a voter signs about a height names the entry that it accepted last. A promise of
a later round also says that the voter has accepted nothing, and will accept nothing, between the
round of that entry and the promised round:

    vote (round a, entry e)             accepted e in round a
    promise of r, last accepted (a, e)  accepted e in round a; nothing in the rounds between a and r

So two statements contradict each other if they name different entries for one round, or if one
names a round in which the other says that nothing was accepted. A voter that follows SPEC.md R1 to
R3 never signs such a pair, no matter how often it crashes: its records are durable before it sends
anything. The run's id and the voter's public key are enough to check a pair.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import (
    built,
    canonical,
    encode_signature,
    optional,
    parse,
    read_digest,
    read_exactly,
    read_int,
    read_map,
    read_peer,
    read_signature,
)
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.values import LineId, check, promise_message, vote_message
from p2ptrain.ledger.messages.claim_statement import (
    CLAIM_PARTS,
    ClaimStatement,
    claim_statement_from_plain,
    claims_contradict,
)

EVIDENCE_BYTES_MAX = 4096
"""Maximum size of encoded evidence: two statements of a few hundred bytes each, and names."""

_NEVER = -1
"""The round of the last accepted entry, if there is none: lower than all rounds."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A voter's signed statement about one height: a promise of round `promised`, or a vote if
    `promised` is None. `entry` is what the voter accepted last, and `round` the round of that.
    """

    promised: int | None
    round: int | None
    entry: Digest | None
    signature: bytes

    def __post_init__(self) -> None:
        check(
            (self.round is None) == (self.entry is None), "a round needs an entry, and vice versa"
        )
        check(self.promised is not None or self.round is not None, "a vote must name an entry")

    @property
    def claim(self) -> tuple[int, Digest | None, int]:
        """The last accepted round and entry, and the next round in which this voter may accept."""
        last = _NEVER if self.round is None else self.round
        return last, self.entry, last + 1 if self.promised is None else self.promised

    def message(self, line: LineId, height: int) -> bytes:
        """Return the bytes that were signed."""
        if self.promised is not None:
            return promise_message(line, height, self.promised, self.round, self.entry)
        assert self.round is not None
        assert self.entry is not None
        return vote_message(line, height, self.round, self.entry)

    def plain(self) -> list[object]:
        return [self.promised, self.round, self.entry, encode_signature(self.signature)]


AnyStatement = Statement | ClaimStatement
"""A statement that evidence can contain."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """`peer` signed both statements about `height` of `line`, and they contradict each other. If
    they are about claims, `height` is 0.
    """

    line: LineId
    height: int
    peer: PeerId
    one: AnyStatement
    other: AnyStatement

    def __post_init__(self) -> None:
        is_vote = isinstance(self.one, Statement)
        check(is_vote or self.height == 0, "a claim is not about a height")
        check(not is_vote or self.height > 0, "the height of a vote must be at least 1")
        check(contradict(self.one, self.other), "these two statements do not contradict each other")

    @property
    def words(self) -> str:
        """Describe for users what the peer did."""
        where = f"at height {self.height}" if self.height else "about its contributions"
        return (
            f"{self.peer} signed contradictory statements {where}: "
            f"{_in_words(self.one)}; and {_in_words(self.other)}"
        )

    def plain(self) -> dict[str, object]:
        statements = [self.one.plain(), self.other.plain()]
        return {
            "line": self.line,
            "height": self.height,
            "peer": self.peer,
            "statements": statements,
        }


def contradict(one: AnyStatement, other: AnyStatement) -> bool:
    """Return whether an honest peer never signs both of these statements about one height, or both
    of these statements about its claims.
    """
    if isinstance(one, ClaimStatement) or isinstance(other, ClaimStatement):
        if isinstance(one, ClaimStatement) and isinstance(other, ClaimStatement):
            return claims_contradict(one, other)
        return False
    (round_1, entry_1, until_1), (round_2, entry_2, until_2) = one.claim, other.claim
    if round_1 == round_2:
        return entry_1 != entry_2
    return round_1 < round_2 < until_1 or round_2 < round_1 < until_2


def check_evidence(lines: Container[LineId], evidence: Evidence, verify: Verify) -> str:
    """Return the reason why `evidence` proves nothing; empty if it is a proof. The contradiction is
    checked on construction, so this only checks that the peer signed both statements, about one of
    the `lines` (the run and its branches).
    """
    if evidence.line not in lines:
        return "it is about another run, or a branch that this node does not know"
    for statement in (evidence.one, evidence.other):
        message = statement.message(evidence.line, evidence.height)
        if not verify(evidence.peer, message, statement.signature):
            return f"a signature of {evidence.peer} is not valid"
    return ""


def encode_evidence(evidence: Evidence) -> bytes:
    """Encode `evidence` as canonical JSON, for a file or for gossip."""
    return canonical(evidence.plain())


def decode_evidence(data: bytes) -> Evidence:
    """Decode evidence without checking its signatures. Raises only RemoteProtocolError."""
    return evidence_from_plain(parse(data, bytes_max=EVIDENCE_BYTES_MAX))


def evidence_from_plain(plain: object, field: str = "evidence") -> Evidence:
    fields = read_map(plain, fields=frozenset({"line", "height", "peer", "statements"}))
    line, height = read_digest(fields["line"], "line"), read_int(fields["height"], "height")
    one, other = map(_statement, read_exactly(fields["statements"], 2, "statements"))
    return built(Evidence, line, height, read_peer(fields["peer"], "peer"), one, other)


def _statement(plain: object) -> AnyStatement:
    if isinstance(plain, list) and len(plain) == CLAIM_PARTS:
        return claim_statement_from_plain(plain)
    promised, round, entry, signature = read_exactly(plain, 4, "a statement")
    return built(
        Statement,
        optional(read_int)(promised, "promised"),
        optional(read_int)(round, "round"),
        optional(read_digest)(entry, "entry"),
        read_signature(signature, "signature"),
    )


def _in_words(statement: AnyStatement) -> str:
    if isinstance(statement, ClaimStatement):
        return statement.words
    if statement.promised is None:
        return f"a vote for {str(statement.entry)[:8]} in round {statement.round}"
    if statement.entry is None:
        return f"a promise of round {statement.promised}, which names no earlier vote"
    return (
        f"a promise of round {statement.promised}, which names a vote for {statement.entry[:8]} in "
        f"round {statement.round} as the last one"
    )
