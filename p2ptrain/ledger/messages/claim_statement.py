"""A peer's signed statement that one claim is its contribution to an outer step (SPEC.md, C1).

A *claim* is a document that fixes a contribution (`p2ptrain/proofs/claims.py`). The ledger knows
only its digest. A peer makes at most one claim with each serial number, and a claim names its peer,
its line and its outer step. So two statements of one peer about one line contradict each other if
they have the same serial number and differ in anything, or if they name one claim for two serial
numbers. Their signatures prove this without the documents.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, is_digest
from p2ptrain.ledger.chain.canonical import (
    built,
    canonical,
    encode_signature,
    read_digest,
    read_exactly,
    read_int,
    read_signature,
)
from p2ptrain.ledger.chain.values import LineId, check


def claim_message(
    line: LineId, step: int, serial: int, tokens: int, blocks: int, claim: Digest
) -> bytes:
    """Return the bytes that a peer signs when it makes a claim."""
    return b"p2ptrain-claim/1\n" + canonical([line, step, serial, tokens, blocks, claim])


@dataclass(frozen=True, slots=True)
class ClaimStatement:
    """The signer's contribution to outer step `step` has `tokens` tokens from the first `blocks`
    blocks of its lease, and `claim` is the digest of its claim with number `serial`.
    """

    step: int
    serial: int
    tokens: int
    blocks: int
    claim: Digest
    signature: bytes

    def __post_init__(self) -> None:
        check(self.step >= 0 and self.serial > 0, "steps start at 0, and serial numbers at 1")
        check(self.tokens > 0 and self.blocks > 0, "a claim must have tokens and blocks")
        check(is_digest(self.claim), "a claim's name must be a digest")

    def message(self, line: LineId, height: int) -> bytes:
        """Return the bytes that were signed. A claim is not about a height."""
        return claim_message(line, self.step, self.serial, self.tokens, self.blocks, self.claim)

    @property
    def words(self) -> str:
        return (
            f"claim {self.claim[:8]} of {self.tokens} tokens with number {self.serial} "
            f"for outer step {self.step}"
        )

    def plain(self) -> list[object]:
        numbers: list[object] = [self.step, self.serial, self.tokens, self.blocks]
        return [*numbers, self.claim, encode_signature(self.signature)]


CLAIM_PARTS = 6
"""Number of parts of an encoded statement about a claim. Statements about heights have fewer."""


def claim_statement_from_plain(plain: object, field: str = "claim") -> ClaimStatement:
    *counts, claim, signature = read_exactly(plain, CLAIM_PARTS, "a statement about a claim")
    step, serial, tokens, blocks = (read_int(each, "a claim") for each in counts)
    named, signed = read_digest(claim, "claim"), read_signature(signature, "signature")
    return built(ClaimStatement, step, serial, tokens, blocks, named, signed)


def claims_contradict(one: ClaimStatement, other: ClaimStatement) -> bool:
    """Return whether an honest peer never signs both of these statements about one line."""
    same_serial = one.serial == other.serial
    if one.claim == other.claim:
        return not same_serial or _content(one) != _content(other)
    return same_serial


def _content(said: ClaimStatement) -> tuple[int, int, int]:
    return said.step, said.tokens, said.blocks
