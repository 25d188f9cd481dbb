"""Decode a ledger state from bytes that come from a peer or from disk.

For any invalid input, these functions raise only RemoteProtocolError. The decoded state is encoded
again and compared, so each state has only one encoding. It must also be consistent, since the
ledger continues from it. The caller compares digests to check that it is the state of a certain
height.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import (
    canonical,
    parse,
    read_digest,
    read_int,
    read_list,
    read_map,
    read_peer,
)
from p2ptrain.ledger.chain.decode_values import (
    snapshot_from_plain,
    terms_from_plain,
    value_from_plain,
)
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import (
    STATE_BYTES_MAX,
    STRETCHES_MAX,
    LedgerState,
    Phase,
    Stretch,
    plain_state,
)
from p2ptrain.ledger.chain.values import MEMBERS_MAX, TERMS_MAX, Roster, SnapshotRef, Terms

PEERS_EVER_MAX = 1 << 17
"""Maximum number of peers that ever contributed. More names do not fit in STATE_BYTES_MAX."""

RUNS_MAX = 1 << 16
BLOCKS_MAX = 1 << 22
"""Maximum number of blocks in one lease or in the returned pool: a few bytes must not expand to a
list of gigabytes.
"""

T = TypeVar("T")


def decode_state(data: bytes) -> LedgerState:
    """Return the state that `encode_state` encoded."""
    state = state_from_plain(parse(data, bytes_max=STATE_BYTES_MAX))
    if canonical(plain_state(state)) != data:
        raise RemoteProtocolError("a state is not in its canonical encoding")
    return state


def state_from_plain(plain: object) -> LedgerState:
    """Return the state from parsed JSON. The caller must check that the encoding was canonical."""
    given = read_map(plain, fields=frozenset(READERS))
    values: dict[str, Any] = {name: read(given[name], name) for name, read in READERS.items()}
    state = LedgerState(**values)
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
    return ""


def _phase(value: object, field: str) -> Phase:
    if value not in list(Phase):
        raise RemoteProtocolError(f"{field} is not a known phase")
    return Phase(str(value))


def _past(value: object, field: str) -> tuple[Stretch, ...]:
    return tuple(map(_stretch, read_list(value, field, length_max=STRETCHES_MAX)))


def _stretch(plain: object) -> Stretch:
    parts = read_list(plain, "a stretch", length_max=5)
    if len(parts) != 5:
        raise RemoteProtocolError("a stretch of a line must have five parts")
    line, *_, gone = parts
    height, step, tokens = (read_int(each, "a stretch") for each in parts[1:4])
    return Stretch(read_digest(line, "line"), height, step, tokens, _peers(gone, "gone"))


def _roster(value: object, field: str) -> Roster | None:
    roster = None if value is None else value_from_plain(value)
    if roster is not None and not isinstance(roster, Roster):
        raise RemoteProtocolError(f"{field} must be a roster")
    return roster


def _snapshot(value: object, field: str) -> SnapshotRef | None:
    return snapshot_from_plain(value)


def _terms(value: object, field: str) -> tuple[Terms, ...]:
    return tuple(map(terms_from_plain, read_list(value, field, length_max=TERMS_MAX)))


def _peers(value: object, field: str) -> tuple[PeerId, ...]:
    return tuple(read_peer(peer, field) for peer in read_list(value, field, length_max=MEMBERS_MAX))


def _proven(value: object, field: str) -> frozenset[PeerId]:
    return frozenset(_peers(value, field))


def _by_peer(value: object, field: str, read: Callable[[object, str], T]) -> dict[PeerId, T]:
    if not isinstance(value, dict) or len(value) > PEERS_EVER_MAX:
        raise RemoteProtocolError(f"{field} must be a map of at most {PEERS_EVER_MAX} peers")
    return {read_peer(peer, field): read(item, field) for peer, item in value.items()}


def _counts(value: object, field: str) -> dict[PeerId, int]:
    return _by_peer(value, field, read_int)


def _leases(value: object, field: str) -> Leases:
    parts = read_map(value, fields=frozenset({"held", "returned", "next_block"}))
    held = _by_peer(parts["held"], "held", _blocks)
    returned, cursor = _blocks(parts["returned"], "returned"), read_int(parts["next_block"], field)
    return Leases(held, returned, cursor)


def _blocks(value: object, field: str) -> tuple[int, ...]:
    runs = [_run(run, field) for run in read_list(value, field, length_max=RUNS_MAX)]
    if sum(count for _, count in runs) > BLOCKS_MAX:
        raise RemoteProtocolError(f"{field} has more than {BLOCKS_MAX} blocks")
    return tuple(block for first, count in runs for block in range(first, first + count))


def _run(value: object, field: str) -> tuple[int, int]:
    pair = read_list(value, field, length_max=2)
    if len(pair) != 2:
        raise RemoteProtocolError(f"{field} must be a list of pairs (first block, count)")
    return read_int(pair[0], field), read_int(pair[1], field)


READERS: Mapping[str, Callable[[object, str], object]] = {
    "line": read_digest,
    "past": _past,
    "height": read_int,
    "head": read_digest,
    "step": read_int,
    "phase": _phase,
    "attempt": read_int,
    "tried_before": read_int,
    "roster": _roster,
    "voters": _peers,
    "learners": _peers,
    "since": _counts,
    "proven": _proven,
    "lease_book": _leases,
    "tokens_by_peer": _counts,
    "tokens": read_int,
    "snapshot": _snapshot,
    "terms": _terms,
}
