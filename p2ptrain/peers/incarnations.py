"""Which start of each peer is the newest, and which heartbeats are older than it.

Each start of a node takes an *incarnation*: a number that orders the starts of one identity. Its
upper 32 bits count the starts, and the count is kept in the home (`starts`); its lower 32 bits are
random, so that two copies of one home differ although they count alike. A heartbeat carries its
sender's incarnation and a serial number, so all heartbeats of a peer are ordered, across restarts
too. A heartbeat counts if it comes after every other that counted, and an old one that somebody
sends again changes nothing.

Two processes with one identity are heard as two incarnations. That is a reason to ask
(`duplicate_identity`), and never evidence: only a signature over a fresh nonce proves life.

Sans-IO: times come in. All of them are the hearer's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.eviction import IsMember, most_dispensable, nobody
from p2ptrain.ids import PeerId

DRAW_BITS = 32
"""Two copies of a home draw the same number once in four billion pairs of starts."""

STARTS_MAX = (1 << 32) - 1
"""A node that starts once a second needs 136 years for them. Only a peer's own signature can raise
its count, so nobody else can use them up."""

INCARNATION_MAX = (STARTS_MAX << DRAW_BITS) | ((1 << DRAW_BITS) - 1)

PEERS_MAX = 4096
"""As many as the peer table has. Old heartbeats of a peer that was forgotten would count again."""

SPREAD_S = 30.0
"""By this time after a restart every connected peer has heard of it: heartbeats are at most 10 s
apart in a run of a hundred, and a neighbour repeats them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An incarnation, and the signature with which its peer vouches that it took this one."""

    incarnation: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Span:
    """When an incarnation was first heard, and when it last said something new."""

    first_s: float
    last_s: float


def incarnation_of(starts: int, draw: int) -> int:
    """Return the incarnation of the start number `starts`, which drew `draw`."""
    assert 0 <= starts <= STARTS_MAX
    assert 0 <= draw < 1 << DRAW_BITS
    return (starts << DRAW_BITS) | draw


def starts_of(incarnation: int) -> int:
    """Return how many starts the identity had, with this one."""
    return incarnation >> DRAW_BITS


def draw_of(incarnation: int) -> int:
    """Return the random half."""
    return incarnation & ((1 << DRAW_BITS) - 1)


@dataclass(slots=True)
class _Newest:
    """What is known of a peer's newest incarnation. `since_s` is when it was first heard, `last_s`
    when it last said something new. `heard` and `taken` are the highest serials of its heartbeats
    that arrived, and that were understood.
    """

    incarnation: int
    since_s: float
    last_s: float
    heard: int = -1
    taken: int = -1
    due_s: float = 0.0
    mark: Mark | None = None


@dataclass(slots=True)
class _Older:
    """An incarnation that is not the newest: the highest serial heard of it, and until when a
    process with this incarnation would have spoken again.
    """

    incarnation: int
    heard: int
    due_s: float


@dataclass(slots=True)
class Incarnations:
    """Of too many peers those that were not heard for longest are forgotten, members last."""

    is_member: IsMember = nobody
    _newest: dict[PeerId, _Newest] = field(default_factory=dict)
    """The peers that were heard last come last."""
    _older: dict[PeerId, _Older] = field(default_factory=dict)
    """Of each peer the one that was the newest before, or that spoke anew after it."""

    def __len__(self) -> int:
        return len(self._newest)

    def is_stale(self, peer: PeerId, incarnation: int) -> bool:
        """Whether `peer` is known to have started again since it took this incarnation."""
        known = self._newest.get(peer)
        return known is not None and incarnation < known.incarnation

    def is_known(self, peer: PeerId, incarnation: int) -> bool:
        """Whether heartbeats of this incarnation have counted."""
        known = self._newest.get(peer)
        return known is not None and incarnation == known.incarnation

    def spoke(self, peer: PeerId) -> Span | None:
        """Return when the newest incarnation of `peer` was heard; None if none was."""
        known = self._newest.get(peer)
        return None if known is None else Span(known.since_s, known.last_s)

    def hear(self, peer: PeerId, incarnation: int, serial: int, now: float, again_s: float) -> bool:
        """Note that a heartbeat of `peer` arrived; a live sender sends the next within `again_s`.

        Returns False for a heartbeat that is no news: of an earlier start, late, or repeated.
        """
        known = self._touched(peer, incarnation, now)
        if incarnation < known.incarnation:
            self._hear_older(peer, incarnation, serial, now + again_s)
            return False
        if serial <= known.heard:
            return False
        known.heard, known.last_s, known.due_s = serial, now, now + again_s
        return True

    def take(self, peer: PeerId, incarnation: int, serial: int, now: float) -> bool:
        """Note that a heartbeat was understood. Returns False if it must not count: its peer has
        started again since, or a later heartbeat of this start has counted.
        """
        known = self._touched(peer, incarnation, now)
        if incarnation < known.incarnation or serial <= known.taken:
            return False
        known.taken = serial
        return True

    def vouch(self, peer: PeerId, mark: Mark) -> None:
        """Keep the newest mark of `peer`, for a process with this identity that has to know it."""
        known = self._newest.get(peer)
        if known is not None and known.incarnation == mark.incarnation:
            known.mark = mark

    def mark(self, peer: PeerId) -> Mark | None:
        known = self._newest.get(peer)
        return None if known is None else known.mark

    def is_other_due(self, peer: PeerId, incarnation: int, now: float) -> bool:
        """Whether another incarnation of `peer` than this one was heard so lately that it may be
        alive. This is hearsay: it is a reason to ask, and to wait for an answer.
        """
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
        if len(self._newest) > PEERS_MAX:
            gone = most_dispensable(self._newest, self.is_member)
            del self._newest[gone]
            self._older.pop(gone, None)
        return known

    def _hear_older(self, peer: PeerId, incarnation: int, serial: int, due_s: float) -> None:
        """An older incarnation that says something new may be alive beside the newest."""
        older = self._older.get(peer)
        if older is None or older.incarnation < incarnation:
            self._older[peer] = _Older(incarnation, serial, due_s)
        elif older.incarnation == incarnation and serial > older.heard:
            older.heard, older.due_s = serial, due_s
