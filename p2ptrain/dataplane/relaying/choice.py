"""Choose the relays for two peers, so that both choose the same ones without an agreement.

A hash of the run, the pair and the outer step puts all members that offer to relay on a list. Each
attempt begins at another place of the list, so an attempt that failed because of its relay is not
repeated with the same one. If both ends see the same offers, their lists are equal. If one end sees
one offer more, the lists are shifted by one place at most. So both ends try several relays, each
one for longer than all before it together: an end that is one place behind still meets the other.

This module does not know which members offer to relay. It uses no clock and no randomness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId, RunId

RELAYS_MAX = 3
"""Maximum number of relays that are tried for one connection. Each further one doubles the time."""

_DOMAIN = "p2ptrain relay 1"


def ranked(
    run: RunId,
    pair: tuple[PeerId, PeerId],
    step: int,
    attempt: int,
    offers: Iterable[PeerId],
    relays_max: int = RELAYS_MAX,
) -> list[PeerId]:
    """Return the relays to try, in order. `offers` are the members that offer to relay; the two
    ends of the pair are left out. The order within `pair` does not matter."""
    low, high = sorted(pair)

    def place(member: PeerId) -> bytes:
        return hashlib.sha256(pack([_DOMAIN, run, low, high, step, member])).digest()

    listed = sorted({each for each in offers if each not in pair}, key=place)
    if not listed:
        return []
    first = attempt % len(listed)
    return (listed[first:] + listed[:first])[:relays_max]


def turns(deadline_s: float, count: int) -> list[float]:
    """Divide `deadline_s` among `count` relays. Each one gets twice as long as the one before it,
    hence longer than all before it together."""
    whole = (1 << count) - 1
    return [deadline_s * (1 << number) / whole for number in range(count)]
