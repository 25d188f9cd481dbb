"""Decode ledger values from plain JSON that comes from a peer or from disk.

For any invalid input, these functions raise RemoteProtocolError and no other exception. Their
argument `field` is the name of the field that contains the value. The fields of an entry are read
according to their types (`_READERS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import (
    Reader,
    built,
    optional,
    read_digest,
    read_exactly,
    read_fields,
    read_int,
    read_kind,
    read_list,
    read_peer,
    read_signature,
    types_of,
)
from p2ptrain.ledger.chain.findings import (
    AUDITORS_MAX,
    FOUND,
    VERDICT_FINDINGS_MAX,
    Finding,
    Found,
    Verdict,
)
from p2ptrain.ledger.chain.values import (
    MEMBERS_MAX,
    SCHEDULES,
    Branch,
    Certificate,
    Certified,
    Commit,
    Entry,
    Heal,
    Participant,
    Roster,
    Schedule,
    Skip,
    SnapshotRef,
    Terms,
    Value,
)

T = TypeVar("T")


def certified_from_plain(plain: object, field: str = "certified") -> Certified:
    return _record(Certified, plain)


def entry_from_plain(plain: object, field: str = "entry") -> Entry:
    return _record(Entry, plain)


def value_from_plain(plain: object, field: str = "value") -> Value:
    fault = "an entry must be a roster, a commit, a skip, a branch, a heal or a verdict"
    kind, fields = read_kind(plain, _KINDS, fault)
    if kind is Roster and "auditors" not in fields:  # As in versions that did not know auditors.
        return built(Roster, **read_fields(fields, _OLD_ROSTER))
    return _record(kind, fields)


def _certificate(plain: object, field: str) -> Certificate:
    return _record(Certificate, plain)


def _record(kind: type[T], plain: object) -> T:
    return built(kind, **read_fields(plain, _FIELDS[kind]))


def _votes(value: object, field: str) -> tuple[tuple[PeerId, bytes], ...]:
    pairs = [
        read_exactly(pair, 2, "a vote") for pair in read_list(value, field, length_max=MEMBERS_MAX)
    ]
    return tuple((read_peer(it, "voter"), read_signature(sig, "signature")) for it, sig in pairs)


def peers_from_plain(value: object, field: str) -> tuple[PeerId, ...]:
    return tuple(read_peer(peer, field) for peer in read_list(value, field, length_max=MEMBERS_MAX))


def _participants(value: object, field: str) -> tuple[Participant, ...]:
    return tuple(map(_participant, read_list(value, field, length_max=MEMBERS_MAX)))


def _participant(plain: object) -> Participant:
    parts = read_list(plain, "a participant", length_max=4)
    peer, tokens, blocks = read_exactly(list(parts[:3]), 3, "a participant")
    numbers = read_int(tokens, "tokens"), read_int(blocks, "blocks")
    claims = (read_digest(part, "claim") for part in parts[3:])
    return built(Participant, read_peer(peer, "participant"), *numbers, *claims)


def terms_from_plain(plain: object, field: str = "terms") -> Terms:
    parts = read_list(plain, "an amendment", length_max=6)
    number, step, digest, blocks = read_exactly(list(parts[:4]), 4, "an amendment")
    counts = read_int(number, "number"), read_int(step, "step")
    named = read_digest(digest, "amendment")
    stops = len(parts) == 6
    if stops and parts[5] is not True:
        raise RemoteProtocolError("an amendment's sixth field must be true")
    # A list of delegates that changes nothing is written only before a sixth field. Otherwise, one
    # amendment would have two encodings.
    reader = optional(peers_from_plain) if stops else peers_from_plain
    delegates = [reader(part, "a delegate") for part in parts[4:5]]
    terms = built(Terms, *counts, named, optional(read_int)(blocks, "blocks"), *delegates)
    return replace(terms, stops=True) if stops else terms


def finding_from_plain(plain: object, field: str = "finding") -> Finding:
    auditor, peer, step, draw, claim, found, signature = read_exactly(plain, 7, "a finding")
    names = read_peer(auditor, "auditor"), read_peer(peer, "peer"), read_int(step, "step")
    digests = read_digest(draw, "draw"), read_digest(claim, "claim")
    signed = read_signature(signature, "signature")
    return built(Finding, *names, *digests, _found(found), signed)


def _found(value: object) -> Found:
    for known in FOUND:
        if value == known:
            return known
    raise RemoteProtocolError(f"a finding must be one of {', '.join(FOUND)}")


def _findings(value: object, field: str) -> tuple[Finding, ...]:
    return tuple(map(finding_from_plain, read_list(value, field, length_max=VERDICT_FINDINGS_MAX)))


def auditors_from_plain(value: object, field: str) -> tuple[PeerId, ...]:
    return tuple(read_peer(it, field) for it in read_list(value, field, length_max=AUDITORS_MAX))


def _schedule(value: object, field: str) -> Schedule:
    for known in SCHEDULES:
        if value == known:
            return known
    raise RemoteProtocolError(f"a schedule must be one of {', '.join(SCHEDULES)}")


def snapshot_from_plain(plain: object, field: str = "snapshot") -> SnapshotRef:
    step, digest = read_exactly(plain, 2, "a snapshot")
    return SnapshotRef(read_int(step, "step"), read_digest(digest, "snapshot"))


_READERS: Mapping[Any, Reader] = {
    int: read_int,
    Digest: read_digest,
    Digest | None: optional(read_digest),
    Entry: entry_from_plain,
    Value: value_from_plain,
    Certificate: _certificate,
    Schedule: _schedule,
    Terms | None: optional(terms_from_plain),
    SnapshotRef | None: optional(snapshot_from_plain),
    tuple[PeerId, ...]: peers_from_plain,
    tuple[PeerId, ...] | None: auditors_from_plain,
    tuple[Finding, ...]: _findings,
    tuple[Participant, ...]: _participants,
    tuple[tuple[PeerId, bytes], ...]: _votes,
}

_KINDS: Mapping[str, type[Value]] = {
    "roster": Roster,
    "commit": Commit,
    "skip": Skip,
    "branch": Branch,
    "heal": Heal,
    "verdict": Verdict,
}

_FIELDS: dict[type, dict[str, Reader]] = {
    kind: {name: _READERS[of] for name, of in types_of(kind).items()}
    for kind in (Certified, Certificate, Entry, *_KINDS.values())
}

_OLD_ROSTER = {name: read for name, read in _FIELDS[Roster].items() if name != "auditors"}
