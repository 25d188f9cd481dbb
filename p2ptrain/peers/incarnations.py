"""Track the newest start of each peer, and recognise outdated heartbeats.

Each start of a node takes an *incarnation*: a number that orders the starts of one identity. The
upper 32 bits count the starts; the node's directory stores the count (`archive/start_count.py`).
The lower 32 bits are random, so that two copies of one directory differ although their counts are
equal. A heartbeat contains its sender's incarnation and a serial number, so all heartbeats of a
peer are ordered, even across restarts. A heartbeat counts only if it is newer than every heartbeat
that has counted. So a replayed heartbeat has no effect.

Two processes with one identity appear as two incarnations. That is a reason to ask
(`duplicate_watch`), but not evidence: only a signature over a fresh nonce proves that a process is
alive.

This module does no I/O: times are arguments, according to the receiver's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.eviction import IsMember, most_dispensable, nobody
from p2ptrain.ids import PeerId

DRAW_BITS = 32
"""Number of random bits in an incarnation. Two copies of a directory draw the same number once in
four billion pairs of starts."""

STARTS_MAX = (1 << 32) - 1
"""Maximum number of starts of one identity. A node that starts once a second reaches this number
after 136 years. Only a peer's own signature can raise its count, so others cannot use it up."""

INCARNATION_MAX = (STARTS_MAX << DRAW_BITS) | ((1 << DRAW_BITS) - 1)

PEERS_MAX = 4096
"""Maximum number of peers remembered: as many as the peer table has. If a peer were forgotten
earlier, its old heartbeats could count again."""

SPREAD_S = 30.0
"""Seconds within which every connected peer hears of a restart: heartbeats are at most 10 s apart
in a run of a hundred, and neighbours forward them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An incarnation, and its peer's signature that proves that the peer took this incarnation."""

    incarnation: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class IncarnationSpan:
    """When the first and the newest heartbeat of an incarnation arrived."""

    first_s: float
    last_s: float


def incarnation_of(starts: int, draw: int) -> int:
    """Return the incarnation of start number `starts` with the random bits `draw`."""
    assert 0 <= starts <= STARTS_MAX
    assert 0 <= draw < 1 << DRAW_BITS
    return (starts << DRAW_BITS) | draw


def starts_of(incarnation: int) -> int:
    """Return the number of starts of the identity, including this one."""
    return incarnation >> DRAW_BITS


def draw_of(incarnation: int) -> int:
    """Return the random bits of an incarnation."""
    return incarnation & ((1 << DRAW_BITS) - 1)


@dataclass(slots=True)
class _Newest:
    """The newest incarnation of a peer. `since_s` is when its first heartbeat arrived, and `last_s`
    when its newest arrived. `heard` is the highest serial of the heartbeats that arrived, and
    `taken` the highest serial of those that were decoded. A live process with this incarnation
    sends its next heartbeat before `due_s`."""

    incarnation: int
    since_s: float
    last_s: float
    heard: int = -1
    taken: int = -1
    due_s: float = 0.0
    mark: Mark | None = None


@dataclass(slots=True)
class _Older:
    """An incarnation that is not the newest. `heard` and `due_s` are as in `_Newest`."""

    incarnation: int
    heard: int
    due_s: float


@dataclass(slots=True)
class Incarnations:
    """The incarnations of all peers. If there are too many peers, those that have been silent for
    the longest time are forgotten, members last."""

    is_member: IsMember = nobody
    peers_max: int = PEERS_MAX
    _newest: dict[PeerId, _Newest] = field(default_factory=dict)
    """In the order of the peers' last heartbeats."""
    _older: dict[PeerId, _Older] = field(default_factory=dict)
    """For each peer, the second-highest incarnation from which a heartbeat arrived."""

    def __len__(self) -> int:
        return len(self._newest)

    def is_stale(self, peer: PeerId, incarnation: int) -> bool:
        """Return whether a newer start of `peer` than this incarnation is known."""
        known = self._newest.get(peer)
        return known is not None and incarnation < known.incarnation

    def is_known(self, peer: PeerId, incarnation: int) -> bool:
        """Return whether this is the newest known incarnation of `peer`."""
        known = self._newest.get(peer)
        return known is not None and incarnation == known.incarnation

    def heard_span(self, peer: PeerId) -> IncarnationSpan | None:
        """Return when heartbeats of the newest incarnation of `peer` arrived; None if none did."""
        known = self._newest.get(peer)
        return None if known is None else IncarnationSpan(known.since_s, known.last_s)

    def note_arrival(
        self, peer: PeerId, incarnation: int, serial: int, now: float, again_s: float
    ) -> bool:
        """Note that a heartbeat of `peer` arrived. A live sender sends the next one within
        `again_s`. Return False if the heartbeat is not new: it comes from an earlier start, is
        late, or is repeated."""
        known = self._touched(peer, incarnation, now)
        if incarnation < known.incarnation:
            self._hear_older(peer, incarnation, serial, now + again_s)
            return False
        if serial <= known.heard:
            return False
        known.heard, known.last_s, known.due_s = serial, now, now + again_s
        return True

    def note_decoded(self, peer: PeerId, incarnation: int, serial: int, now: float) -> bool:
        """Note that a heartbeat was decoded. Return False if it must not count, because its peer
        has started again, or a later heartbeat of this start has already counted."""
        known = self._touched(peer, incarnation, now)
        if incarnation < known.incarnation or serial <= known.taken:
            return False
        known.taken = serial
        return True

    def keep_mark(self, peer: PeerId, mark: Mark) -> None:
        """Keep `mark` if it belongs to the newest incarnation of `peer`. A process with this
        identity gets the mark when it asks."""
        known = self._newest.get(peer)
        if known is not None and known.incarnation == mark.incarnation:
            known.mark = mark

    def mark(self, peer: PeerId) -> Mark | None:
        known = self._newest.get(peer)
        return None if known is None else known.mark

    def is_other_due(self, peer: PeerId, incarnation: int, now: float) -> bool:
        """Return whether a heartbeat of a different incarnation of `peer` arrived so recently that
        its process may be alive. This is not a proof, only a reason to ask and wait for an
        answer."""
        known, older = self._newest.get(peer), self._older.get(peer)
        heard = ((each.incarnation, each.due_s) for each in (known, older) if each is not None)
        return any(other != incarnation and now < due_s for other, due_s in heard)

    def _touched(self, peer: PeerId, incarnation: int, now: float) -> _Newest:
        known = self._newest.pop(peer, None)
        if known is None:
            known = _Newest(incarnation, now, now)
        elif incarnation > known.incarnation:
            self._older[peer] = _Older(known.incarnation, known.heard, known.due_s)
            known = _Newest(incarnation, now, now)
        self._newest[peer] = known
        if len(self._newest) > self.peers_max:
            gone = most_dispensable(self._newest, self.is_member)
            del self._newest[gone]
            self._older.pop(gone, None)
        return known

    def _hear_older(self, peer: PeerId, incarnation: int, serial: int, due_s: float) -> None:
        """Note a heartbeat of an older incarnation. If it is new, the process that sent it may be
        alive at the same time as the process of the newest incarnation."""
        older = self._older.get(peer)
        if older is None or older.incarnation < incarnation:
            self._older[peer] = _Older(incarnation, serial, due_s)
        elif older.incarnation == incarnation and serial > older.heard:
            older.heard, older.due_s = serial, due_s
