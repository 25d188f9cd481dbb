"""Bound the tables that have an entry for each peer. Members always get a place.

In an open run, one person can appear as any number of peers, and these must not fill the memory or
displace members. The number of members is limited, and the chain names them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import MEMBERS_MAX

PEERS_MAX = 2 * MEMBERS_MAX
"""Maximum number of entries in a table: all members, and as many other peers."""

ValueT = TypeVar("ValueT")


def make_room(table: dict[PeerId, ValueT], peer: PeerId, members: Container[PeerId]) -> bool:
    """Return whether `table` has room for `peer`. In a full table, make room for a member."""
    if peer in table or len(table) < PEERS_MAX:
        return True
    if peer not in members:
        return False
    del table[next(each for each in table if each not in members)]
    return True


def put_newest(table: dict[PeerId, ValueT], peer: PeerId, value: ValueT) -> PeerId | None:
    """Make `value` the newest entry of `table`. Return the peer whose entry is dropped for it."""
    table.pop(peer, None)
    table[peer] = value
    if len(table) <= PEERS_MAX:
        return None
    oldest = next(iter(table))
    del table[oldest]
    return oldest
