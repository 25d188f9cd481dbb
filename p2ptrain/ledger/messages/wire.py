"""Encode and decode ledger messages. `decode` raises only RemoteProtocolError.

A message is encoded as a map with its kind and its fields. Each field is written and read according
to its type (`_CODECS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import (
    Reader,
    canonical,
    encode_signature,
    optional,
    parse,
    plain_of,
    read_digest,
    read_exactly,
    read_fields,
    read_int,
    read_kind,
    read_list,
    read_peer,
    read_signature,
    types_of,
    unchanged,
)
from p2ptrain.ledger.chain.decode_values import (
    certified_from_plain,
    entry_from_plain,
    finding_from_plain,
)
from p2ptrain.ledger.chain.findings import Finding
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Certified, Entry, LineId, Vote
from p2ptrain.ledger.messages import messages
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claim_statement_from_plain
from p2ptrain.ledger.messages.evidence import Evidence, evidence_from_plain
from p2ptrain.ledger.messages.messages import (
    MESSAGE_BYTES_MAX,
    PAGE_ENTRIES_MAX,
    REASON_CHARACTERS_MAX,
    Accepted,
    Message,
    PromiseProof,
)


def encode(message: Message) -> bytes:
    data = canonical({"kind": _KIND_OF[type(message)], **_written(message)})
    if len(data) > MESSAGE_BYTES_MAX:
        raise LocalProtocolError(f"a message of {len(data)} bytes is larger than peers accept")
    return data


def decode(data: bytes) -> Message:
    """Decode a message from an untrusted peer. Raises RemoteProtocolError."""
    plain = parse(data, bytes_max=MESSAGE_BYTES_MAX)
    kind, fields = read_kind(plain, _KINDS, "a ledger message has an unknown kind")
    return kind(**_read(fields, kind))


class Codec(NamedTuple):
    """The functions that return the JSON form of a field, and the field from its JSON form."""

    write: Callable[[Any], object]
    read: Reader


def _written(value: object) -> dict[str, object]:
    return {name: it.write(getattr(value, name)) for name, it in _FIELDS[type(value)].items()}


def _read(plain: object, kind: type) -> dict[str, Any]:
    return read_fields(plain, {name: codec.read for name, codec in _FIELDS[kind].items()})


def accepted_from_plain(plain: object, field: str = "accepted") -> Accepted:
    number, entry, signature = read_exactly(plain, 3, "the accepted entry")
    signed = read_signature(signature, "signature")
    return Accepted(read_int(number, "round"), entry_from_plain(entry), signed)


def _plain_proofs(proofs: tuple[PromiseProof, ...]) -> list[object]:
    return [_plain_proof(proof) for proof in proofs]


def _plain_proof(proof: PromiseProof) -> list[object]:
    accepted: list[object] | None = None
    if proof.proposed is not None:
        accepted = [proof.accepted_round, proof.accepted, encode_signature(proof.proposed)]
    return [proof.voter, accepted, encode_signature(proof.signature)]


def _read_proofs(value: object, field: str) -> tuple[PromiseProof, ...]:
    return tuple(map(_read_proof, read_list(value, field, length_max=MEMBERS_MAX)))


def _read_proof(plain: object) -> PromiseProof:
    name, accepted, signed = read_exactly(plain, 3, "a promise")
    voter, signature = read_peer(name, "voter"), read_signature(signed, "signature")
    if accepted is None:
        return PromiseProof(voter, None, None, None, signature)
    round, entry, proposed = read_exactly(accepted, 3, "the accepted entry")
    last = read_int(round, "round"), read_digest(entry, "accepted")
    return PromiseProof(voter, *last, read_signature(proposed, "signature"), signature)


def _read_page(value: object, field: str) -> tuple[Certified, ...]:
    return tuple(map(certified_from_plain, read_list(value, field, length_max=PAGE_ENTRIES_MAX)))


def _read_reason(reason: object, field: str) -> str:
    if not isinstance(reason, str) or len(reason) > REASON_CHARACTERS_MAX:
        raise RemoteProtocolError(f"a reason must have at most {REASON_CHARACTERS_MAX} characters")
    return reason


def _read_vote(plain: object, field: str) -> Vote:
    return Vote(**_read(plain, Vote))


_CODECS: Mapping[Any, Codec] = {
    int: Codec(unchanged, read_int),
    str: Codec(lambda reason: reason[:REASON_CHARACTERS_MAX], _read_reason),
    bytes: Codec(encode_signature, read_signature),
    PeerId: Codec(unchanged, read_peer),
    Digest: Codec(unchanged, read_digest),
    LineId: Codec(unchanged, read_digest),
    Vote: Codec(lambda vote: _written(vote), _read_vote),
    Entry: Codec(plain_of, entry_from_plain),
    Certified: Codec(plain_of, certified_from_plain),
    Evidence: Codec(plain_of, evidence_from_plain),
    ClaimStatement: Codec(plain_of, claim_statement_from_plain),
    Finding: Codec(plain_of, finding_from_plain),
    Accepted | None: Codec(plain_of, optional(accepted_from_plain)),
    tuple[PromiseProof, ...]: Codec(_plain_proofs, _read_proofs),
    tuple[Certified, ...]: Codec(lambda page: [it.plain() for it in page], _read_page),
}

_KINDS: Mapping[str, type[Message]] = {
    "prepare": messages.Prepare,
    "promise": messages.Promise,
    "propose": messages.Propose,
    "accept": messages.Accept,
    "refused": messages.Refused,
    "outcome": messages.Outcome,
    "entries-request": messages.EntriesRequest,
    "entries": messages.Entries,
    "pruned": messages.Pruned,
    "accusation": messages.Accusation,
    "show-claim": messages.ShowClaim,
    "show-finding": messages.ShowFinding,
    "propose-branch": messages.ProposeBranch,
    "sign-branch": messages.SignBranch,
    "refuse-branch": messages.RefuseBranch,
}

_KIND_OF = {build: kind for kind, build in _KINDS.items()}

_FIELDS: dict[type, dict[str, Codec]] = {
    build: {name: _CODECS[of] for name, of in types_of(build).items()}
    for build in (Vote, *_KINDS.values())
}
