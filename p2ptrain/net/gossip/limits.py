"""Limits on the gossip accepted from one neighbour, applied before any signature is checked.

The neighbour that forwards a message is often not its author. Only the signature proves who
the author is, and a flood must not make us check signatures. So everything that a neighbour
forwards counts against that neighbour, and messages under any one author's name may use only a
share of the neighbour's limit. Otherwise an attacker that floods an honest neighbour would use up
that neighbour's whole limit. A message under a false name uses up only the share of that name.

In an open run anybody can also invent neighbours. So all messages that a non-member wrote or
forwarded share one common limit, and do not reduce what members may forward of each other's
messages.

This module does no I/O: times are arguments. It does not look into messages.
"""

from __future__ import annotations

from collections import Counter

from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import KEYS_MAX, Allowance

PER_S = 128.0
"""Messages per second from one neighbour. A peer with only one neighbour receives all gossip
through it. In a run of a hundred members, 12 heartbeats (each member sends fewer the more members
there are) and 3 allowlists arrive per second. Each member also sends about ten messages per outer
step: 100 × 10 ÷ 30 s, or 33 messages a second, if a step takes half a minute. The sum, 48 messages
a second, is less than half of this limit. Checking and forwarding 128 messages a second takes less
than half of a core."""
AT_ONCE = 512
"""Burst, in messages. A new connection brings the newest message of each of a hundred members on
each of four topics: 100 × 4 = 400 messages. The burst is also enough for everything that the
members send at the end of an outer step."""

AUTHOR_SHARE = 1 / 8
"""One member's share of the limit: 16 messages a second, and 64 at once. A member sends up to 20 a
second, but only for so short a time that the burst covers the difference."""
OTHERS_SHARE = 1 / 2
"""The share of all non-members, through all neighbours together: 64 messages a second, and 256 at
once. Checking and forwarding a message takes 3.5 ms, so this is a quarter of a core. For a node
that does not know any member yet, everybody is a non-member; the share is more than the 48 messages
a second that a hundred members send."""

FRAMES_PER_S = 2 * PER_S
FRAMES_AT_ONCE = 2 * AT_ONCE
"""Limits on the frames from one neighbour, in units: the rate per second, and the burst. Most
frames hold one message and count as one unit (see BYTES_PER_UNIT). Every neighbour forwards each
message, even if another neighbour did so before. An honest neighbour forwards each message once: up
to PER_S units of messages from members, and at most half as many from non-members. The rest is for
control messages. With long frames, this is 256 units × 16 KiB = 4 MiB per second from one
neighbour, which take 0.16 s of CPU time to parse."""

BYTES_PER_UNIT = 16 << 10
"""Bytes that count as one unit. A heartbeat is shorter. The longest messages count as about thirty
units, because libp2p keeps every message in memory for several seconds."""


class GossipLimits:
    """Admits messages within the limits. Counts what it refuses from each neighbour, for at most
    `complaints_max` neighbours."""

    def __init__(self, is_member: IsMember, complaints_max: int = KEYS_MAX) -> None:
        self._is_member = is_member
        self._complaints_max = complaints_max
        self._frames = Allowance(FRAMES_AT_ONCE, FRAMES_PER_S)
        self._messages = Allowance(AT_ONCE, PER_S)
        self._by_author = Allowance(AT_ONCE * AUTHOR_SHARE, PER_S * AUTHOR_SHARE)
        self._by_others = Allowance(AT_ONCE * OTHERS_SHARE, PER_S * OTHERS_SHARE)
        self._refused: Counter[PeerId] = Counter()
        self.refused = 0

    def admits_frame(self, forwarder: PeerId, size_bytes: int, now: float) -> bool:
        """Return whether a frame may be parsed at all. A long frame counts as several, since
        parsing takes time in proportion to its length."""
        return self._frames.consume(forwarder, _units(size_bytes), now) or self.refuse(forwarder)

    def admits_entries(self, forwarder: PeerId, count: int, now: float) -> bool:
        """Return whether `count` subscriptions of a frame may be processed. Each counts as a frame,
        since it takes about as much time."""
        return not count or self._frames.consume(forwarder, count, now) or self.refuse(forwarder)

    def admits_message(
        self, forwarder: PeerId, author: PeerId, size_bytes: int, now: float
    ) -> bool:
        """Return whether to check a message in `author`'s name that `forwarder` sent us."""
        count = _units(size_bytes)
        if self._is_member(forwarder) and self._is_member(author):
            # A message beyond its author's share must not count against the neighbour's limit.
            allowed = (
                self._messages.covers(forwarder, count, now)
                and self._by_author.consume((forwarder, author), count, now)
                and self._messages.consume(forwarder, count, now)
            )
        else:
            allowed = self._by_others.consume(None, count, now)
        return allowed or self.refuse(forwarder)

    def refuse(self, forwarder: PeerId, count: int = 1) -> bool:
        """Count refused items of a neighbour. Returns False, which callers return in turn."""
        self.refused += count
        self._refused[forwarder] += count
        if len(self._refused) > self._complaints_max:
            del self._refused[next(iter(self._refused))]
        return False

    def pop_refused(self) -> dict[PeerId, int]:
        """Return the number of refused items by neighbour since the last call."""
        refused, self._refused = dict(self._refused), Counter()
        return refused


def _units(size_bytes: int) -> int:
    return 1 + size_bytes // BYTES_PER_UNIT
