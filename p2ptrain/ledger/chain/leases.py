"""Assign data blocks to members: each member trains only on the blocks of its *lease*.

Blocks have running ids: block id i has the data of block i mod (number of blocks). So every pass
through the data has its own ids, and each id can be committed only once. Blocks that departed
members gave back are assigned first, in ascending order. Then the cursor, which is the lowest id
that was never assigned, advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from p2ptrain.ids import PeerId

LEASES_HELD_MAX = 4
"""Maximum number of blocks that a member holds, as a multiple of a lease. A member holds more than
one lease after skipped outer steps, since it keeps training while nothing is committed.
"""


@dataclass(frozen=True, slots=True)
class Leases:
    """All leases of a run.

    `held` are the uncommitted blocks of each member, in the order in which it trains on them.
    `returned` are the blocks that departed members gave back, ascending. `next_block` is the
    cursor.
    """

    held: Mapping[PeerId, tuple[int, ...]]
    returned: tuple[int, ...] = ()
    next_block: int = 0


def top_up(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Assign blocks to each of `members`, in this order, until it holds at least `blocks`."""
    lacking = {member: blocks - len(leases.held.get(member, ())) for member in members}
    return _grant(leases, lacking)


def extend(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Assign `blocks` more to each of `members`, up to LEASES_HELD_MAX times `blocks` in all."""
    most = LEASES_HELD_MAX * blocks
    more = {member: min(blocks, most - len(leases.held.get(member, ()))) for member in members}
    return _grant(leases, more)


def commit(leases: Leases, trained: Iterable[tuple[PeerId, int]]) -> Leases:
    """Remove the first blocks of these members' leases, because they are committed now. `trained`
    lists the members, each with its number of committed blocks.
    """
    held = dict(leases.held)
    for member, blocks in trained:
        assert 0 < blocks <= len(held[member])
        held[member] = held[member][blocks:]
    return replace(leases, held=held)


def give_back(leases: Leases, members: Iterable[PeerId]) -> Leases:
    """Take the blocks of the departed `members`, so that other members get them."""
    held = dict(leases.held)
    returned = list(leases.returned)
    for member in members:
        returned.extend(held.pop(member, ()))
    return replace(leases, held=held, returned=tuple(sorted(returned)))


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
