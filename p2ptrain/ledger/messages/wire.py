"""Encode and decode ledger messages. `decode` raises only RemoteProtocolError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ledger.chain.canonical import (
    canonical,
    encode_signature,
    parse,
    read_digest,
    read_int,
    read_list,
    read_map,
    read_peer,
    read_signature,
)
from p2ptrain.ledger.chain.decode_values import (
    certified_from_plain,
    entry_from_plain,
    read_exactly,
)
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Vote
from p2ptrain.ledger.messages.evidence import evidence_from_plain
from p2ptrain.ledger.messages.messages import (
    MESSAGE_BYTES_MAX,
    PAGE_ENTRIES_MAX,
    REASON_CHARACTERS_MAX,
    Accept,
    Accepted,
    Accusation,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
    ProposeBranch,
    Pruned,
    RefuseBranch,
    Refused,
    SignBranch,
)


def encode(message: Message) -> bytes:
    data = canonical(_plain(message))
    if len(data) > MESSAGE_BYTES_MAX:
        raise LocalProtocolError(f"a message of {len(data)} bytes is larger than peers accept")
    return data


def decode(data: bytes) -> Message:
    """Decode a message from an untrusted peer. Raises RemoteProtocolError."""
    plain = parse(data, bytes_max=MESSAGE_BYTES_MAX)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(kind, str) or kind not in _READERS:
        raise RemoteProtocolError("a ledger message has an unknown kind")
    names, read = _READERS[kind]
    return read(read_map(plain, fields=names | {"kind"}))


def _plain(message: Message) -> dict[str, object]:
    match message:
        case Prepare(height, round):
            return {"kind": "prepare", "height": height, "round": round}
        case Promise():
            return _promise_plain(message)
        case Propose():
            return _propose_plain(message)
        case Accept(vote):
            return {"kind": "accept", "vote": vote_plain(vote)}
        case Refused(height, round, promised, reason):
            numbers = {"height": height, "round": round, "promised": promised}
            return {"kind": "refused", "reason": reason[:REASON_CHARACTERS_MAX], **numbers}
        case Outcome(certified):
            return {"kind": "outcome", "certified": certified.plain()}
        case EntriesRequest(from_height):
            return {"kind": "entries-request", "from_height": from_height}
        case Entries(height, page):
            return {"kind": "entries", "height": height, "certified": [it.plain() for it in page]}
        case Pruned(height, up_to, checkpoint):
            numbers = {"height": height, "up_to": up_to}
            return {"kind": "pruned", "checkpoint": checkpoint, **numbers}
        case Accusation(evidence):
            return {"kind": "accusation", "evidence": evidence.plain()}
        case ProposeBranch(entry):
            return {"kind": "propose-branch", "entry": entry.plain()}
        case SignBranch(height, digest, signature):
            signed = encode_signature(signature)
            return {"kind": "sign-branch", "height": height, "entry": digest, "signature": signed}
        case RefuseBranch(height, reason):
            text = reason[:REASON_CHARACTERS_MAX]
            return {"kind": "refuse-branch", "height": height, "reason": text}
        case _:
            assert_never(message)


def _promise_plain(promise: Promise) -> dict[str, object]:
    accepted = promise.accepted
    return {
        "kind": "promise",
        "height": promise.height,
        "round": promise.round,
        "accepted": None if accepted is None else accepted.plain(),
        "signature": encode_signature(promise.signature),
    }


def _propose_plain(proposal: Propose) -> dict[str, object]:
    return {
        "kind": "propose",
        "round": proposal.round,
        "entry": proposal.entry.plain(),
        "signature": encode_signature(proposal.signature),
        "promises": [_proof_plain(proof) for proof in proposal.promises],
    }


def _proof_plain(proof: PromiseProof) -> list[object]:
    accepted: list[object] | None = None
    if proof.proposed is not None:
        accepted = [proof.accepted_round, proof.accepted, encode_signature(proof.proposed)]
    return [proof.voter, accepted, encode_signature(proof.signature)]


def vote_plain(vote: Vote) -> dict[str, object]:
    return {
        "line": vote.line,
        "height": vote.height,
        "round": vote.round,
        "entry": vote.entry,
        "voter": vote.voter,
        "signature": encode_signature(vote.signature),
    }


Fields = Mapping[str, object]


def _read_prepare(fields: Fields) -> Message:
    return Prepare(read_int(fields["height"], "height"), read_int(fields["round"], "round"))


def _read_promise(fields: Fields) -> Message:
    said = fields["accepted"]
    accepted = None if said is None else accepted_from_plain(said)
    height, round = read_int(fields["height"], "height"), read_int(fields["round"], "round")
    return Promise(height, round, accepted, read_signature(fields["signature"], "signature"))


def accepted_from_plain(plain: object) -> Accepted:
    number, entry, signature = read_exactly(plain, 3, "the accepted entry")
    signed = read_signature(signature, "signature")
    return Accepted(read_int(number, "round"), entry_from_plain(entry), signed)


def _read_propose(fields: Fields) -> Message:
    proofs = read_list(fields["promises"], "promises", length_max=MEMBERS_MAX)
    round, entry = read_int(fields["round"], "round"), entry_from_plain(fields["entry"])
    signature = read_signature(fields["signature"], "signature")
    return Propose(round, entry, signature, tuple(map(_read_proof, proofs)))


def _read_proof(plain: object) -> PromiseProof:
    name, accepted, signed = read_exactly(plain, 3, "a promise")
    voter, signature = read_peer(name, "voter"), read_signature(signed, "signature")
    if accepted is None:
        return PromiseProof(voter, None, None, None, signature)
    round, entry, proposed = read_exactly(accepted, 3, "the accepted entry")
    last = read_int(round, "round"), read_digest(entry, "accepted")
    return PromiseProof(voter, *last, read_signature(proposed, "signature"), signature)


_VOTE_FIELDS = frozenset({"line", "height", "round", "entry", "voter", "signature"})


def _read_accept(fields: Fields) -> Message:
    return Accept(vote_from_plain(fields["vote"]))


def vote_from_plain(plain: object) -> Vote:
    vote = read_map(plain, fields=_VOTE_FIELDS)
    return Vote(
        read_digest(vote["line"], "line"),
        read_int(vote["height"], "height"),
        read_int(vote["round"], "round"),
        read_digest(vote["entry"], "entry"),
        read_peer(vote["voter"], "voter"),
        read_signature(vote["signature"], "signature"),
    )


def _read_propose_branch(fields: Fields) -> Message:
    return ProposeBranch(entry_from_plain(fields["entry"]))


def _read_sign_branch(fields: Fields) -> Message:
    height, entry = read_int(fields["height"], "height"), read_digest(fields["entry"], "entry")
    return SignBranch(height, entry, read_signature(fields["signature"], "signature"))


def _read_refuse_branch(fields: Fields) -> Message:
    return RefuseBranch(read_int(fields["height"], "height"), _reason(fields["reason"]))


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or len(reason) > REASON_CHARACTERS_MAX:
        raise RemoteProtocolError(f"a reason must have at most {REASON_CHARACTERS_MAX} characters")
    return reason


def _read_refused(fields: Fields) -> Message:
    reason = _reason(fields["reason"])
    height, round = read_int(fields["height"], "height"), read_int(fields["round"], "round")
    return Refused(height, round, read_int(fields["promised"], "promised"), reason)


def _read_outcome(fields: Fields) -> Message:
    return Outcome(certified_from_plain(fields["certified"]))


def _read_request(fields: Fields) -> Message:
    return EntriesRequest(read_int(fields["from_height"], "from_height"))


def _read_entries(fields: Fields) -> Message:
    page = read_list(fields["certified"], "certified", length_max=PAGE_ENTRIES_MAX)
    return Entries(read_int(fields["height"], "height"), tuple(map(certified_from_plain, page)))


def _read_pruned(fields: Fields) -> Message:
    height, up_to = read_int(fields["height"], "height"), read_int(fields["up_to"], "up_to")
    return Pruned(height, up_to, read_digest(fields["checkpoint"], "checkpoint"))


def _read_accusation(fields: Fields) -> Message:
    return Accusation(evidence_from_plain(fields["evidence"]))


_READERS: dict[str, tuple[frozenset[str], Callable[[Fields], Message]]] = {
    "prepare": (frozenset({"height", "round"}), _read_prepare),
    "promise": (frozenset({"height", "round", "accepted", "signature"}), _read_promise),
    "propose": (frozenset({"round", "entry", "signature", "promises"}), _read_propose),
    "accept": (frozenset({"vote"}), _read_accept),
    "refused": (frozenset({"height", "round", "promised", "reason"}), _read_refused),
    "outcome": (frozenset({"certified"}), _read_outcome),
    "entries-request": (frozenset({"from_height"}), _read_request),
    "entries": (frozenset({"height", "certified"}), _read_entries),
    "pruned": (frozenset({"height", "up_to", "checkpoint"}), _read_pruned),
    "accusation": (frozenset({"evidence"}), _read_accusation),
    "propose-branch": (frozenset({"entry"}), _read_propose_branch),
    "sign-branch": (frozenset({"height", "entry", "signature"}), _read_sign_branch),
    "refuse-branch": (frozenset({"height", "reason"}), _read_refuse_branch),
}
