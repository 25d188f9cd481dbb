"""How much gossip is taken in of one neighbour, decided before any of it is checked.

Whoever forwards a message need not have written it, and who wrote it is not known until its
signature is checked, which is what a flood must not make us do. So the neighbour answers for all
that it brings; and of what it may bring, each name that it claims has a share only. Else somebody
who floods an honest neighbour would have that neighbour's silence about everybody else. A false
name uses up what this neighbour may bring in that name, and nobody else's.

In an open run anybody can invent neighbours, too. So all that somebody wrote or brings who is no
member has one share, whoever brings it, and takes nothing of what members bring of each other.

Sans-IO: times come in. What a message says is not known here.
"""

from __future__ import annotations

from collections import Counter

from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import KEYS_MAX, Allowance

PER_S = 128.0
"""Whoever has one neighbour hears everybody through it. In a run of a hundred members that is 12
heartbeats a second (they slow down as they become more), 3 lists, and some ten words of each
member in an outer step, 33 a second if that takes half a minute: a third of this. To check and pass
on so many takes less than half of a core.
"""
AT_ONCE = 512
"""The newest word of each of a hundred on each of four topics, as on a new connection; or what they
all say at the end of an outer step."""

AUTHOR_SHARE = 1 / 8
"""Of a member: 16 a second. Nobody says more than 20 for long, nor is more than one lost by it."""
OTHERS_SHARE = 1 / 2
"""Of all who are no members, by way of all neighbours together, and beside what members bring of
members: 64 a second, and 256 at once. To check and pass on one takes 3.5 ms, so that is a quarter
of a core. It is twice what a hundred members say, for whoever knows of no member yet.
"""

FRAMES_PER_S = 2 * PER_S
FRAMES_AT_ONCE = 2 * AT_ONCE
"""Units of frames. Most frames hold one message, which every neighbour brings, and which is new in
one of them. An honest neighbour forwards each message once: PER_S units of members' messages and at
most half as many of others'. The rest is for control. With long frames this is 4 MiB/s of one
neighbour, which take 0.16 s of CPU to parse.
"""

BYTES_PER_UNIT = 16 << 10
"""Bytes that count as one. A heartbeat is shorter; the longest messages are thirty times as long,
and all are kept for some seconds.
"""


class Intake:
    """What is refused is counted by who brought it."""

    def __init__(self, is_member: IsMember) -> None:
        self._is_member = is_member
        self._frames = Allowance(FRAMES_AT_ONCE, FRAMES_PER_S)
        self._messages = Allowance(AT_ONCE, PER_S)
        self._by_author = Allowance(AT_ONCE * AUTHOR_SHARE, PER_S * AUTHOR_SHARE)
        self._by_others = Allowance(AT_ONCE * OTHERS_SHARE, PER_S * OTHERS_SHARE)
        self._refused: Counter[PeerId] = Counter()
        self.refused = 0

    def takes_frame(self, forwarder: PeerId, size_bytes: int, now: float) -> bool:
        """Return whether a frame may be parsed at all. A long frame counts as several: parsing
        takes time in proportion to its length."""
        return self._frames.take(forwarder, _units(size_bytes), now) or self.refuse(forwarder)

    def takes_entries(self, forwarder: PeerId, count: int, now: float) -> bool:
        """Return whether so many subscriptions of a frame may be heeded. Each counts as a frame:
        it takes about as much time."""
        return not count or self._frames.take(forwarder, count, now) or self.refuse(forwarder)

    def takes(self, forwarder: PeerId, author: PeerId, size_bytes: int, now: float) -> bool:
        """Return whether a message may be checked that `forwarder` brought in `author`'s name."""
        count = _units(size_bytes)
        if self._is_member(forwarder) and self._is_member(author):
            # What its author's share refuses is not to use up what all members share.
            allowed = (
                self._messages.covers(forwarder, count, now)
                and self._by_author.take((forwarder, author), count, now)
                and self._messages.take(forwarder, count, now)
            )
        else:
            allowed = self._by_others.take(None, count, now)
        return allowed or self.refuse(forwarder)

    def refuse(self, forwarder: PeerId, count: int = 1) -> bool:
        """Note that so many of a neighbour's were not taken. False, for callers to return."""
        self.refused += count
        self._refused[forwarder] += count
        if len(self._refused) > KEYS_MAX:
            del self._refused[next(iter(self._refused))]
        return False

    def take_refused(self) -> dict[PeerId, int]:
        """How much was refused of each neighbour since this was last asked."""
        refused, self._refused = dict(self._refused), Counter()
        return refused


def _units(size_bytes: int) -> int:
    return 1 + size_bytes // BYTES_PER_UNIT
