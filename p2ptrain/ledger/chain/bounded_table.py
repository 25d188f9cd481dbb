"""Room for what is heard of peers: bounded whatever is gossiped, and members always have a place.

In an open run whoever likes may come, under as many names as it likes; members are few, and agreed.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import MEMBERS_MAX

PEERS_MAX = 2 * MEMBERS_MAX
"""What more peers said than could be members twice over is not kept."""

Kept = TypeVar("Kept")


def make_room(table: dict[PeerId, Kept], peer: PeerId, members: Container[PeerId]) -> bool:
    """Whether `table` has room for `peer`: where it is full, a member takes the place of whoever
    was first of those that are none.
    """
    if peer in table or len(table) < PEERS_MAX:
        return True
    if peer not in members:
        return False
    del table[next(each for each in table if each not in members)]
    return True
