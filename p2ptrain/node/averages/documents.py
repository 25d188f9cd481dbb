"""Show the documents of this node's claims, and ask participants for theirs.

A document names the contribution, so whoever has it can fetch the contribution's chunks. A node
shows a document only after a decided roster has named its claim. Until then nobody else can copy
the contribution, or choose another one in response to it (the ledger's SPEC.md, S15).

*Whose word is it?* The ledger names the digest of each document, so nothing else has to be
believed.
"""

from __future__ import annotations

from p2ptrain.errors import PeerUnreachable, RemoteProtocolError, TryLater
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import CLAIM_ASK_BYTES_MAX, CLAIM_PROTOCOL
from p2ptrain.proofs.claims import CLAIM_BYTES_MAX, Claim, decode_claim, encode_claim
from p2ptrain.rate_limit import Allowance

PEER_BURST, PEER_PER_S = 64, 2.0
"""Rate limit for requests of one peer. A member asks once for each outer step."""

ASK_S = 15.0
"""Deadline in seconds for a question. Nothing waits for the answer, and a busy peer is slow."""


def serve_claims(context: Context) -> None:
    """From now on, show the documents of our claims to admitted peers."""
    allowed = Allowance(PEER_BURST, PEER_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        digest = payload.decode("ascii", errors="replace")
        if not is_digest(digest):
            raise RemoteProtocolError("a claim is named by its digest", peer=peer)
        if not allowed.consume(peer, 1, context.now()):
            raise TryLater("too many requests for claims: try again in a minute")
        claim = own_claim(context, Digest(digest))
        return b"" if claim is None or not is_decided(context, claim) else encode_claim(claim)

    forwarding.handle(context, CLAIM_PROTOCOL, answer, bytes_max=CLAIM_ASK_BYTES_MAX)


def own_claim(context: Context, digest: Digest) -> Claim | None:
    claims = context.trainer.claims
    return None if claims is None else claims.named(digest)


def is_decided(context: Context, claim: Claim) -> bool:
    """Return whether a roster that is part of our chain names this claim."""
    state, history = context.ledger.snapshot, context.ledger.history
    if claim.step == state.step:
        return claim.digest in state.claims.values()
    if not context.ledger.kept.start.step <= claim.step < state.step:
        return False
    return any(each.claim == claim.digest for each in history.participants(claim.step))


def _swapped(context: Context, participant: Participant) -> bytes | None:
    """Return the document that a participant has shown for the newest attempt, if it is about the
    same claim. Then it need not be asked again."""
    book = context.reduce.sketches
    if book is None or participant not in book.participants:
        return None
    return book.documents.get(participant.peer)


async def document_of(context: Context, step: int, participant: Participant) -> Claim:
    """Return the document of a participant of outer step `step`.

    Raises PeerError, RemoteProtocolError: the participant does not show it, or it contradicts the
    roster."""
    digest, peer = participant.claim, participant.peer
    assert digest is not None, "the run has no claims"
    if peer == context.me:
        if (own := own_claim(context, digest)) is None:
            raise PeerUnreachable("this node does not have its claim any more", peer=peer)
        return own
    reply = _swapped(context, participant)
    if reply is None:
        reply = await forwarding.request(
            context,
            peer,
            CLAIM_PROTOCOL,
            digest.encode(),
            deadline_s=ASK_S,
            bytes_max=CLAIM_BYTES_MAX,
        )
    if not reply:
        raise PeerUnreachable("it does not show its claim", peer=peer)
    claim = decode_claim(reply)
    if claim.digest != digest:
        raise RemoteProtocolError("it shows a different claim", peer=peer)
    told = (claim.peer, claim.step, claim.tokens, claim.blocks)
    if told != (peer, step, participant.tokens, participant.blocks):
        raise RemoteProtocolError("its claim says something else than the roster", peer=peer)
    return claim
