"""A *claim*: the signed document that fixes a peer's contribution to one outer step.

A participant quantises its pseudo-gradient once, before it says that it is ready. Its claim names
the digest of exactly these bytes, the θ at which the work began, and the proof at that θ, if there
is one. The ledger carries the claim's digest, with the statement that the peer signed about it
(SPEC.md, C1 to C5). The document itself is shown only after the roster is decided.

Nodes make claims in runs whose manifest says so (`p2ptrain/node/training/claiming.py`), and so does
the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ledger.chain.canonical import (
    INTEGER_MAX,
    Reader,
    built,
    canonical,
    digest_of,
    optional,
    parse,
    read_digest,
    read_fields,
    read_int,
    read_peer,
)
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ledger.chain.values import LineId, check
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claim_message

CLAIM_BYTES_MAX = 1024
"""Maximum size of an encoded claim: four digests, a peer id, four numbers, and the field names."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The contribution of `peer` to outer step `step` on `line` (the run, or the Branch entry that
    began a branch).

    - `serial`: the number of this claim. A peer uses each number once in the whole run.
    - `base`: the entry after which θ was exactly the θ at which the first inner step began: the
      last Commit, or the run if there was none. None if the work did not begin at such a θ, for
      example if it was re-based on a new θ or continued after a Skip.
    - `tokens`, `blocks`: the weight in the average, and the number of blocks of the peer's lease,
      counted from its first block, that the work used.
    - `contribution`: the digest of the quantised pseudo-gradient, as the kernels write it. Nodes
      store these bytes as a blob, and this is the digest of its list of chunks.
    - `proof`: the digest of the proof at `base`, if there is one.
    """

    peer: PeerId
    line: LineId
    step: int
    serial: int
    base: Digest | None
    tokens: int
    blocks: int
    contribution: Digest
    proof: Digest | None = None
    digest: Digest = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        numbers = (self.step, self.serial, self.tokens, self.blocks)
        check(all(0 <= each <= INTEGER_MAX for each in numbers), "a number is out of range")
        check(self.serial > 0, "serial numbers start at 1")
        check(self.tokens > 0 and self.blocks > 0, "a claim must have tokens and blocks")
        names = (self.line, self.contribution, self.base, self.proof)
        fits = all(name is None or is_digest(name) for name in names)
        check(fits, "a line, a base, a contribution and a proof are named by digests")
        check(self.proof is None or self.base is not None, "a proof needs a base")
        object.__setattr__(self, "digest", digest_of(b"p2ptrain-claim-document/1", self.plain()))

    def plain(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _READERS}

    @property
    def message(self) -> bytes:
        """The bytes that the peer signs. They name the document by its digest."""
        numbers = (self.step, self.serial, self.tokens, self.blocks)
        return claim_message(self.line, *numbers, self.digest)


def signed_statement(claim: Claim, sign: Sign) -> ClaimStatement:
    """Return the statement about `claim` that its peer reports when it is ready."""
    numbers = (claim.step, claim.serial, claim.tokens, claim.blocks)
    return ClaimStatement(*numbers, claim.digest, sign(claim.message))


def encode_claim(claim: Claim) -> bytes:
    """Encode the document as canonical JSON."""
    return canonical(claim.plain())


def decode_claim(data: bytes) -> Claim:
    """Decode a document from an untrusted peer. Raises RemoteProtocolError, also if it is not in
    its canonical encoding.
    """
    claim = built(Claim, **read_fields(parse(data, bytes_max=CLAIM_BYTES_MAX), _READERS))
    if canonical(claim.plain()) != data:
        raise RemoteProtocolError("a claim is not in its canonical encoding")
    return claim


def document_fault(
    claim: Claim, peer: PeerId, line: LineId, said: ClaimStatement, verify: Verify
) -> str:
    """Return the reason why the document `claim` is not what `peer` stated on `line`; empty if it
    is. If the digests match and anything else does not, the statement and the document together
    prove that `peer` lied: it signed for a document that says something else.

    Raises:
        RemoteProtocolError: `peer` did not sign the statement, so nothing is known about it.
    """
    if not verify(peer, said.message(line, 0), said.signature):
        raise RemoteProtocolError(f"a statement about a claim is not signed by {peer}")
    if claim.digest != said.claim:
        return "it is a different document"
    if claim.peer != peer:
        return f"it is a claim of {claim.peer}"
    if claim.line != line:
        return "it is about a different run or branch"
    written = (claim.step, claim.serial, claim.tokens, claim.blocks)
    if written != (said.step, said.serial, said.tokens, said.blocks):
        return "its numbers are not those that the peer stated"
    return ""


_READERS: dict[str, Reader] = {
    "peer": read_peer,
    "line": read_digest,
    "step": read_int,
    "serial": read_int,
    "base": optional(read_digest),
    "tokens": read_int,
    "blocks": read_int,
    "contribution": read_digest,
    "proof": optional(read_digest),
}
