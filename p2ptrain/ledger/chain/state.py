"""The state of the run after a number of entries of the chain, and its encoding.

A Commit that certifies a snapshot names the digest of the state that it applies to. A node that
trusts this Commit can therefore check a state without the entries before it. Each field of
`LedgerState` must have an encoder in `ENCODERS`, since otherwise two different states could share a
digest, and a decoder in `history/decode_state.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import canonical, digest_of, plain_of, unchanged
from p2ptrain.ledger.chain.findings import Audit, Exclusion
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.values import LineId, Roster, SnapshotRef, Terms

STATE_BYTES_MAX = 8 << 20
"""Maximum size of an encoded state, in bytes. A thousand members with their leases take 0.3 MB; the
rest is for all former contributors.
"""

STRETCHES_MAX = 1024
"""Maximum number of branches in one chain. Each costs its voters branch_after_s, so honest chains
stay far below this number; a chain with more is refused.
"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a chain on one line (the run itself, or a branch), up to the Branch entry with
    which the chain left that line. `height` and `step` are its last height and outer step, and
    `tokens` the number of tokens committed up to there. `gone` are the voters that it left out.
    """

    line: LineId
    height: int
    step: int
    tokens: int
    gone: tuple[PeerId, ...]

    def plain(self) -> list[object]:
        return [self.line, self.height, self.step, self.tokens, list(self.gone)]


class Phase(StrEnum):
    GATHER = "gather"
    REDUCE = "reduce"
    ENDED = "ended"
    HEALED = "healed"


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The state of the run after `height` entries. The last of them has digest `head`.

    - `line`: the current line: the run, or the digest of the newest Branch. All votes name it.
    - `past`: the earlier lines, which the chain left by a Branch.
    - `step`: the current outer step.
    - `attempt`: the number that its next attempt at a reduce will have.
    - `tried_before`: the number of attempts of this step on earlier lines.
    - `roster`: the roster that opened the current reduce; None unless `phase` is REDUCE.
    - `since`: the outer step in which each member was admitted.
    - `proven`: the learners that took part in a committed update and may be made voters.
    - `tokens`, `tokens_by_peer`: the tokens in committed updates, in all and of each contributor.
    - `snapshot`: the newest certified snapshot.
    - `terms`: all amendments agreed so far, including those for later steps.
    - `claims`: the claims that the rosters of this outer step have named, by participant (SPEC.md,
      S15). Empty in a run without claims.
    - `auditors`: the members that audit claims, sorted.
    - `audits`: the claims of recent updates that can still be judged, the oldest first.
    - `excluded`: the peers that are excluded from averages.
    """

    line: LineId
    past: tuple[Stretch, ...]
    height: int
    head: Digest
    step: int
    phase: Phase
    attempt: int
    tried_before: int
    roster: Roster | None
    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...]
    since: Mapping[PeerId, int]
    proven: frozenset[PeerId]
    lease_book: Leases
    tokens_by_peer: Mapping[PeerId, int]
    tokens: int
    snapshot: SnapshotRef | None
    terms: tuple[Terms, ...]
    claims: Mapping[PeerId, Digest] = field(default_factory=dict)
    auditors: tuple[PeerId, ...] = ()
    audits: tuple[Audit, ...] = ()
    excluded: Mapping[PeerId, Exclusion] = field(default_factory=dict)
    _digest: Digest | None = field(init=False, compare=False, repr=False, default=None)

    @property
    def digest(self) -> Digest:
        """The digest of this state. It is computed on first use (when a snapshot is certified)."""
        if self._digest is None:
            object.__setattr__(self, "_digest", digest_state(self))
        assert self._digest is not None
        return self._digest

    @property
    def decided(self) -> Mapping[LineId, int]:
        """For each line of this chain, the height up to which it is decided."""
        return {**{each.line: each.height for each in self.past}, self.line: self.height}

    @property
    def tries(self) -> int:
        """Number of attempts of this outer step on this line."""
        return self.attempt - self.tried_before

    @property
    def members(self) -> tuple[PeerId, ...]:
        return self.voters + self.learners

    def is_member(self, peer: PeerId) -> bool:
        return peer in self.since

    @property
    def leases(self) -> Mapping[PeerId, tuple[int, ...]]:
        """The uncommitted blocks of each member, in the order in which it trains on them."""
        return self.lease_book.held


Encoder = Callable[[Any], object]

OMITTED: Mapping[str, object] = {"claims": {}, "auditors": [], "audits": [], "excluded": {}}
"""The fields that an encoded state lacks if they are empty, with their encoding. A state without
claims and audits is encoded as in versions that did not know them, so that it keeps its digest.
"""


def plain_state(state: LedgerState) -> dict[str, object]:
    """Return the state as a value that canonical JSON can encode."""
    plain = {name: encode(getattr(state, name)) for name, encode in ENCODERS.items()}
    return {name: it for name, it in plain.items() if it or name not in OMITTED}


def encoded_fields(state: type[LedgerState]) -> set[str]:
    """Return the names of the encoded fields: all but the cached digest."""
    return {each.name for each in fields(state) if each.compare}


def encode_state(state: LedgerState, bytes_max: int = STATE_BYTES_MAX) -> bytes:
    """Encode a state canonically. Raises LocalProtocolError if it is larger than peers accept."""
    data = canonical(plain_state(state))
    if len(data) > bytes_max:
        raise LocalProtocolError(f"a state of {len(data)} bytes is larger than peers accept")
    return data


def digest_state(state: LedgerState) -> Digest:
    """Return the digest of a state: equal digests mean equal states. This takes time proportional
    to the number of members, so `LedgerState.digest` caches the result.
    """
    assert encoded_fields(type(state)) == ENCODERS.keys(), "every field needs an encoder"
    return digest_of(b"p2ptrain-state/1", plain_state(state))


def _plain_book(book: Leases) -> dict[str, object]:
    return {
        "held": {peer: runs_of(blocks) for peer, blocks in book.held.items()},
        "returned": runs_of(book.returned),
        "next_block": book.next_block,
    }


def runs_of(blocks: tuple[int, ...]) -> list[list[int]]:
    """Return block ids as [first, count] pairs, in the same order. Most leases need one pair."""
    if blocks and blocks == tuple(range(blocks[0], blocks[0] + len(blocks))):
        return [[blocks[0], len(blocks)]]  # The usual case, several times faster.
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return runs


ENCODERS: Mapping[str, Encoder] = {
    "line": unchanged,
    "past": lambda past: [each.plain() for each in past],
    "height": unchanged,
    "head": unchanged,
    "step": unchanged,
    "phase": lambda phase: phase.value,
    "attempt": unchanged,
    "tried_before": unchanged,
    "roster": plain_of,
    "voters": list,
    "learners": list,
    "since": dict,
    "proven": sorted,
    "lease_book": _plain_book,
    "tokens_by_peer": dict,
    "tokens": unchanged,
    "snapshot": plain_of,
    "terms": lambda terms: [each.plain() for each in terms],
    "claims": dict,
    "auditors": list,
    "audits": lambda audits: [each.plain() for each in audits],
    "excluded": lambda excluded: {peer: it.plain() for peer, it in excluded.items()},
}
