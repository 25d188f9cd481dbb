"""Choose which peer to drop when there is no room for all: non-members are dropped first.

In an open run, anybody is admitted, under as many identities as they like. The number of members is
limited, and the ledger names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from p2ptrain.ids import PeerId

IsMember = Callable[[PeerId], bool]


def nobody(peer: PeerId) -> bool:
    """Return False. This is the `IsMember` to use while the members are unknown."""
    return False


def most_dispensable(peers: Collection[PeerId], is_member: IsMember) -> PeerId:
    """Return the first of `peers` that is not a member. If all are members, return the first."""
    return next((peer for peer in peers if not is_member(peer)), next(iter(peers)))
