"""The ledger's own derived state as bytes, so that a quorum can sign its digest.

A Commit that certifies a snapshot names the digest of the state that it applies to. A node that
trusts this Commit can therefore check a state without the entries before it. Each field of
`LedgerState` has an encoder in `SPELLINGS` here and a decoder in `history/decode_state.py`. A state
with a field that has no encoder cannot be encoded at all, since two different states would share a
digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.canonical import canonical, digest_of
from p2ptrain.ledger.chain.leases import Leases

if TYPE_CHECKING:
    from p2ptrain.ledger.chain.state import LedgerState

STATE_BYTES_MAX = 8 << 20
"""Largest encoded state in bytes. A thousand members with their leases take 0.3 MB; the rest is for
all former contributors.
"""

Spell = Callable[[Any], object]


def plain_state(state: LedgerState) -> dict[str, object]:
    """Return the state as a value that canonical JSON can encode."""
    return {name: spell(getattr(state, name)) for name, spell in SPELLINGS.items()}


def spelled_fields(state: type[LedgerState]) -> set[str]:
    """Return the fields that are part of a state. Cached fields take no part in comparison and are
    left out.
    """
    return {each.name for each in fields(state) if each.compare}


def encode_state(state: LedgerState) -> bytes:
    """Encode a state canonically. Raises LocalProtocolError if it is larger than peers accept."""
    data = canonical(plain_state(state))
    if len(data) > STATE_BYTES_MAX:
        raise LocalProtocolError(f"a state of {len(data)} bytes is more than peers accept")
    return data


def digest_state(state: LedgerState) -> Digest:
    """Return the digest of a state: equal digests mean equal states. It takes time in proportion to
    the number of members, so `LedgerState.digest` caches it.
    """
    assert spelled_fields(type(state)) == SPELLINGS.keys(), "every field must be part of the digest"
    return digest_of(b"p2ptrain-state/1", plain_state(state))


def _same(value: object) -> object:
    return value


def _plain(value: Any) -> object:
    return None if value is None else value.plain()


def _plain_book(book: Leases) -> dict[str, object]:
    return {
        "held": {peer: runs_of(blocks) for peer, blocks in book.held.items()},
        "returned": runs_of(book.returned),
        "next_block": book.next_block,
    }


def runs_of(blocks: tuple[int, ...]) -> list[list[int]]:
    """Return block ids as [first, count] pairs, in their order. A lease consists of one such run,
    or few.
    """
    if not blocks:
        return []
    if blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
        return [[blocks[0], len(blocks)]]
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return runs


SPELLINGS: Mapping[str, Spell] = {
    "line": _same,
    "past": lambda past: [each.plain() for each in past],
    "height": _same,
    "head": _same,
    "step": _same,
    "phase": lambda phase: phase.value,
    "attempt": _same,
    "tried_before": _same,
    "roster": _plain,
    "voters": list,
    "learners": list,
    "since": dict,
    "proven": sorted,
    "lease_book": _plain_book,
    "tokens_by_peer": dict,
    "tokens": _same,
    "snapshot": _plain,
    "terms": lambda terms: [each.plain() for each in terms],
}
