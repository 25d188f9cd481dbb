"""Decode ledger values from plain JSON that comes from a peer or from disk.

For any invalid input, these functions raise RemoteProtocolError and no other exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import (
    read_digest,
    read_int,
    read_list,
    read_map,
    read_peer,
    read_signature,
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


def entry_from_plain(plain: object) -> Entry:
    fields = read_map(plain, fields=frozenset({"height", "parent", "value"}))
    height, parent = read_int(fields["height"], "height"), read_digest(fields["parent"], "parent")
    return _built(lambda: Entry(height, parent, value_from_plain(fields["value"])))


def value_from_plain(plain: object) -> Value:
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if kind == "roster":
        return _roster_from_plain(plain)
    if kind == "commit":
        return _commit_from_plain(plain)
    if kind == "skip":
        fields = read_map(plain, fields=frozenset({"kind", "step"}))
        return Skip(read_int(fields["step"], "step"))
    if kind == "branch":
        return _branch_from_plain(plain)
    if kind == "heal":
        fields = read_map(plain, fields=frozenset({"kind", "step", "height", "entry"}))
        step, height = read_int(fields["step"], "step"), read_int(fields["height"], "height")
        entry = read_digest(fields["entry"], "entry")
        return _built(lambda: Heal(step, height, entry))
    raise RemoteProtocolError("an entry must be a roster, a commit, a skip, a branch or a heal")


def certified_from_plain(plain: object) -> Certified:
    fields = read_map(plain, fields=frozenset({"entry", "certificate"}))
    return Certified(
        entry_from_plain(fields["entry"]), _certificate_from_plain(fields["certificate"])
    )


def _certificate_from_plain(plain: object) -> Certificate:
    fields = read_map(plain, fields=frozenset({"height", "round", "entry", "votes"}))
    votes = []
    for pair in read_list(fields["votes"], "votes", length_max=MEMBERS_MAX):
        voter, signature = read_exactly(pair, 2, "a vote")
        votes.append((read_peer(voter, "voter"), read_signature(signature, "signature")))
    height, round = read_int(fields["height"], "height"), read_int(fields["round"], "round")
    entry = read_digest(fields["entry"], "entry")
    return _built(lambda: Certificate(height, round, entry, tuple(votes)))


_ROSTER_FIELDS = frozenset(
    {"kind", "step", "attempt", "voters", "learners", "participants", "schedule", "terms"}
)
_COMMIT_FIELDS = frozenset({"kind", "step", "attempt", "update", "snapshot", "state"})


def _roster_from_plain(plain: object) -> Roster:
    fields = read_map(plain, fields=_ROSTER_FIELDS)
    step, attempt = read_int(fields["step"], "step"), read_int(fields["attempt"], "attempt")
    participants = []
    for triple in read_list(fields["participants"], "participants", length_max=MEMBERS_MAX):
        peer, tokens, blocks = read_exactly(triple, 3, "a participant")
        numbers = read_int(tokens, "tokens"), read_int(blocks, "blocks")
        participants.append(_participant(read_peer(peer, "participant"), *numbers))
    voters, learners = _peers(fields["voters"], "voters"), _peers(fields["learners"], "learners")
    schedule, averaging = _schedule(fields["schedule"]), tuple(participants)
    terms = None if fields["terms"] is None else terms_from_plain(fields["terms"])
    return _built(lambda: Roster(step, attempt, voters, learners, averaging, schedule, terms))


def terms_from_plain(plain: object) -> Terms:
    number, step, digest, blocks = read_exactly(plain, 4, "an amendment")
    counts = read_int(number, "number"), read_int(step, "step")
    named = read_digest(digest, "amendment")
    lease = None if blocks is None else read_int(blocks, "blocks")
    return _built(lambda: Terms(*counts, named, lease))


def _schedule(value: object) -> Schedule:
    for known in SCHEDULES:
        if value == known:
            return known
    raise RemoteProtocolError(f"a schedule must be one of {', '.join(SCHEDULES)}")


def _branch_from_plain(plain: object) -> Branch:
    fields = read_map(plain, fields=frozenset({"kind", "step", "voters", "learners"}))
    voters, learners = _peers(fields["voters"], "voters"), _peers(fields["learners"], "learners")
    return _built(lambda: Branch(read_int(fields["step"], "step"), voters, learners))


def _participant(peer: PeerId, tokens: int, blocks: int) -> Participant:
    return _built(lambda: Participant(peer, tokens, blocks))


def _commit_from_plain(plain: object) -> Commit:
    fields = read_map(plain, fields=_COMMIT_FIELDS)
    step, attempt = read_int(fields["step"], "step"), read_int(fields["attempt"], "attempt")
    update, snapshot = (
        read_digest(fields["update"], "update"),
        snapshot_from_plain(fields["snapshot"]),
    )
    state = None if fields["state"] is None else read_digest(fields["state"], "state")
    return _built(lambda: Commit(step, attempt, update, snapshot, state))


def snapshot_from_plain(plain: object) -> SnapshotRef | None:
    if plain is None:
        return None
    of_step, digest = read_exactly(plain, 2, "a snapshot")
    return SnapshotRef(read_int(of_step, "step"), read_digest(digest, "snapshot"))


def _peers(value: object, field: str) -> tuple[PeerId, ...]:
    return tuple(read_peer(peer, field) for peer in read_list(value, field, length_max=MEMBERS_MAX))


def read_exactly(value: object, length: int, field: str) -> list[object]:
    items = list(read_list(value, field, length_max=length))
    if len(items) != length:
        raise RemoteProtocolError(f"{field} must have {length} parts")
    return items


def _built(build: Callable[[], T]) -> T:
    try:
        return build()
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc
