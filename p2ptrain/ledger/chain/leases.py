"""Assign data blocks to members: pure functions that move blocks between the cursor, the leases and
the returned pool.

A block id is a running integer (its data is block id mod the number of blocks). So every pass
through the data has its own ids, and each id can be committed only once. Returned blocks are
assigned first, in ascending order, before the cursor advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2ptrain.ids import PeerId

LEASES_HELD_MAX = 4
"""Maximum number of leases that a member holds. A member holds several leases after skipped steps,
since it keeps training while nothing is committed.
"""


@dataclass(frozen=True, slots=True)
class Leases:
    """The state of all leases.

    `held` are the uncommitted blocks of each member, in the order in which it trains on them.
    `returned` are blocks given back by members that left, in ascending order. `next_block` is the
    cursor.
    """

    held: Mapping[PeerId, tuple[int, ...]]
    returned: tuple[int, ...] = ()
    next_block: int = 0


def top_up(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Assign blocks until each of `members`, in this order, holds at least `blocks`."""
    lacking = {member: blocks - len(leases.held.get(member, ())) for member in members}
    return _grant(leases, lacking)


def extend(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Assign `blocks` more to each of `members`, up to LEASES_HELD_MAX times `blocks` in all."""
    most = LEASES_HELD_MAX * blocks
    more = {member: min(blocks, most - len(leases.held.get(member, ()))) for member in members}
    return _grant(leases, more)


def commit(leases: Leases, trained: Iterable[tuple[PeerId, int]]) -> Leases:
    """Permanently remove the first blocks of these members' leases: they are committed."""
    held = dict(leases.held)
    for member, blocks in trained:
        assert 0 < blocks <= len(held[member])
        held[member] = held[member][blocks:]
    return Leases(held, leases.returned, leases.next_block)


def give_back(leases: Leases, members: Iterable[PeerId]) -> Leases:
    """Move the blocks of the leaving `members` to the returned pool, so that others get them."""
    held = dict(leases.held)
    returned = list(leases.returned)
    for member in members:
        returned.extend(held.pop(member, ()))
    return Leases(held, tuple(sorted(returned)), leases.next_block)


def _grant(leases: Leases, wanted: Mapping[PeerId, int]) -> Leases:
    held = dict(leases.held)
    pool, used, cursor = leases.returned, 0, leases.next_block
    for member, count in wanted.items():
        if count <= 0:
            held.setdefault(member, ())
            continue
        again = pool[used : used + count]
        used += len(again)
        fresh = tuple(range(cursor, cursor + count - len(again)))
        cursor += len(fresh)
        held[member] = (*held.get(member, ()), *again, *fresh)
    return Leases(held, pool[used:], cursor)
