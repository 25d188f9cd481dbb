"""Decode a ledger state from bytes that come from a peer or from disk.

For any invalid input, these functions raise only RemoteProtocolError. The decoded state is encoded
again and compared, so each state has only one valid encoding. It must also be consistent, since the
ledger continues from it. To check that it is the true state at some height, compare digests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.audits import AUDIT_STEPS
from p2ptrain.ledger.chain.canonical import (
    Reader,
    canonical,
    optional,
    parse,
    read_digest,
    read_exactly,
    read_fields,
    read_int,
    read_list,
    read_peer,
)
from p2ptrain.ledger.chain.decode_values import (
    auditors_from_plain,
    peers_from_plain,
    snapshot_from_plain,
    terms_from_plain,
    value_from_plain,
)
from p2ptrain.ledger.chain.findings import Audit, Exclusion
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import (
    OMITTED,
    STATE_BYTES_MAX,
    STRETCHES_MAX,
    LedgerState,
    Phase,
    Stretch,
    plain_state,
)
from p2ptrain.ledger.chain.values import MEMBERS_MAX, TERMS_MAX, Roster, Terms

PEERS_EVER_MAX = 1 << 17
"""Maximum number of peers that ever contributed. More names do not fit in STATE_BYTES_MAX."""

RUNS_MAX = 1 << 16
"""Maximum number of runs of consecutive block ids in one lease or in the returned blocks."""

BLOCKS_MAX = 1 << 22
"""Maximum number of blocks in one lease, or of blocks that departed members gave back: a few bytes
must not expand to a list of gigabytes.
"""

AUDITS_MAX = AUDIT_STEPS + 1
"""Maximum number of outer steps whose claims can be judged at a time."""

T = TypeVar("T")


def decode_state(data: bytes) -> LedgerState:
    """Return the state that `encode_state` encoded."""
    state = state_from_plain(parse(data, bytes_max=STATE_BYTES_MAX))
    if canonical(plain_state(state)) != data:
        raise RemoteProtocolError("a state is not in its canonical encoding")
    return state


def state_from_plain(plain: object, field: str = "state") -> LedgerState:
    """Return the state from parsed JSON. The caller must check that the encoding was canonical."""
    fields = {**OMITTED, **plain} if isinstance(plain, dict) else plain
    state = LedgerState(**read_fields(fields, READERS))
    fault = _incoherence(state)
    if fault:
        raise RemoteProtocolError(f"a state is inconsistent: {fault}")
    return state


def _incoherence(state: LedgerState) -> str:
    """Return the reason why the state is inconsistent; empty if it is consistent."""
    members = set(state.members)
    if not state.voters or len(members) != len(state.members):
        return "it has no voter, or names a member twice"
    if len(members) > MEMBERS_MAX:
        return f"it has more than {MEMBERS_MAX} members"
    if state.since.keys() != members or state.leases.keys() != members:
        return "its members, leases and admission steps do not name the same peers"
    if not state.proven <= set(state.learners):
        return "some of its proven peers are not learners"
    if (state.roster is None) is (state.phase is Phase.REDUCE):
        return "it has a roster outside a reduce, or a reduce without a roster"
    if state.roster is not None and state.roster.members != state.members:
        return "its roster has different members"
    named = {} if state.roster is None else {it.peer: it.claim for it in state.roster.participants}
    if any(claim != state.claims.get(peer) for peer, claim in named.items()):
        return "its roster names other claims"
    if not set(state.auditors) <= members:
        return "some of its auditors are not members"
    return ""


def _phase(value: object, field: str) -> Phase:
    if value not in list(Phase):
        raise RemoteProtocolError(f"{field} is not a known phase")
    return Phase(str(value))


def _past(value: object, field: str) -> tuple[Stretch, ...]:
    return tuple(map(_stretch, read_list(value, field, length_max=STRETCHES_MAX)))


def _stretch(plain: object) -> Stretch:
    line, *counts, gone = read_exactly(plain, 5, "a stretch")
    height, step, tokens = (read_int(each, "a stretch") for each in counts)
    return Stretch(read_digest(line, "line"), height, step, tokens, peers_from_plain(gone, "gone"))


def _roster(value: object, field: str) -> Roster:
    roster = value_from_plain(value)
    if not isinstance(roster, Roster):
        raise RemoteProtocolError(f"{field} must be a roster")
    return roster


def _terms(value: object, field: str) -> tuple[Terms, ...]:
    return tuple(map(terms_from_plain, read_list(value, field, length_max=TERMS_MAX)))


def _proven(value: object, field: str) -> frozenset[PeerId]:
    return frozenset(peers_from_plain(value, field))


def _by_peer(value: object, field: str, read: Callable[[object, str], T]) -> dict[PeerId, T]:
    if not isinstance(value, dict) or len(value) > PEERS_EVER_MAX:
        raise RemoteProtocolError(f"{field} must be a map of at most {PEERS_EVER_MAX} peers")
    return {read_peer(peer, field): read(item, field) for peer, item in value.items()}


def _counts(value: object, field: str) -> dict[PeerId, int]:
    return _by_peer(value, field, read_int)


def _claims(value: object, field: str) -> dict[PeerId, Digest]:
    return _by_peer(value, field, read_digest)


def _audits(value: object, field: str) -> tuple[Audit, ...]:
    return tuple(map(_audit, read_list(value, field, length_max=AUDITS_MAX)))


def _audit(plain: object) -> Audit:
    step, draw, claims, auditors = read_exactly(plain, 4, "an audit")
    named = _claims(claims, "claims"), auditors_from_plain(auditors, "auditors")
    return Audit(read_int(step, "step"), read_digest(draw, "draw"), *named)


def _excluded(value: object, field: str) -> dict[PeerId, Exclusion]:
    return _by_peer(value, field, _exclusion)


def _exclusion(plain: object, field: str) -> Exclusion:
    until, step, claim, draw, judges = read_exactly(plain, 5, "an exclusion")
    numbers = read_int(until, "until"), read_int(step, "step")
    digests = read_digest(claim, "claim"), read_digest(draw, "draw")
    return Exclusion(*numbers, *digests, auditors_from_plain(judges, "judges"))


def _leases(value: object, field: str) -> Leases:
    fields = read_fields(value, {"held": _held, "returned": _blocks, "next_block": read_int})
    return Leases(**fields)


def _held(value: object, field: str) -> dict[PeerId, tuple[int, ...]]:
    return _by_peer(value, field, _blocks)


def _blocks(value: object, field: str) -> tuple[int, ...]:
    runs = [_run(run, field) for run in read_list(value, field, length_max=RUNS_MAX)]
    if sum(count for _, count in runs) > BLOCKS_MAX:
        raise RemoteProtocolError(f"{field} has more than {BLOCKS_MAX} blocks")
    return tuple(block for first, count in runs for block in range(first, first + count))


def _run(value: object, field: str) -> tuple[int, int]:
    first, count = read_exactly(value, 2, f"a run of blocks in {field}")
    return read_int(first, field), read_int(count, field)


READERS: Mapping[str, Reader] = {
    "line": read_digest,
    "past": _past,
    "height": read_int,
    "head": read_digest,
    "step": read_int,
    "phase": _phase,
    "attempt": read_int,
    "tried_before": read_int,
    "roster": optional(_roster),
    "voters": peers_from_plain,
    "learners": peers_from_plain,
    "since": _counts,
    "proven": _proven,
    "lease_book": _leases,
    "tokens_by_peer": _counts,
    "tokens": read_int,
    "snapshot": optional(snapshot_from_plain),
    "terms": _terms,
    "claims": _claims,
    "auditors": auditors_from_plain,
    "audits": _audits,
    "excluded": _excluded,
}
