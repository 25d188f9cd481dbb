"""Choose which peer to drop when there is no room for all: peers that are not members come first.

In an open run, anybody is admitted, under as many identities as they like. The number of members is
limited, and the ledger names the members. So non-members cannot take a member's place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from p2ptrain.ids import PeerId

IsMember = Callable[[PeerId], bool]


def nobody(peer: PeerId) -> bool:
    """Return False: nobody is a member. Use this while the members are unknown."""
    return False


def most_dispensable(peers: Collection[PeerId], is_member: IsMember) -> PeerId:
    """Return the first of `peers` that is not a member. If all are members, return the first."""
    return next((peer for peer in peers if not is_member(peer)), next(iter(peers)))
