"""Choose which peer to drop when there is no room for all: peers that are not members go first.

In an open run anybody is admitted, under as many identities as they like. The members are few, and
the ledger agrees on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from p2ptrain.ids import PeerId

IsMember = Callable[[PeerId], bool]


def nobody(peer: PeerId) -> bool:
    """Return False: an `IsMember` for the time in which the members are not known yet."""
    return False


def most_dispensable(peers: Collection[PeerId], is_member: IsMember) -> PeerId:
    """Return the first of `peers` that is not a member, or the first of all if all are members."""
    return next((peer for peer in peers if not is_member(peer)), next(iter(peers)))
