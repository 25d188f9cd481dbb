"""Who goes where there is no room for all: never a member for the sake of who is none.

In an open run anybody is admitted, under as many names as it likes; members are few, and agreed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from p2ptrain.ids import PeerId

IsMember = Callable[[PeerId], bool]


def nobody(peer: PeerId) -> bool:
    """Who is a member while that is not known."""
    return False


def most_dispensable(peers: Collection[PeerId], is_member: IsMember) -> PeerId:
    """The first of `peers` that is no member; the first of all if all are."""
    return next((peer for peer in peers if not is_member(peer)), next(iter(peers)))
