"""Which data blocks each member holds: pure moves between cursor, leases, the returned pool, the
past.

A block id is a running integer (its data is block id mod the number of blocks), so every pass
through the data has ids of its own and "committed once" has a meaning. Returned blocks are given
out first, lowest first, before the cursor moves on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2ptrain.ids import PeerId

LEASES_HELD_MAX = 4
"""After skipped steps a member trains on without committing; it holds at most so many leases."""


@dataclass(frozen=True, slots=True)
class Leases:
    """Blocks held and not committed, by member in the order of training; the rest of the
    accounts.
    """

    held: Mapping[PeerId, tuple[int, ...]]
    returned: tuple[int, ...] = ()
    next_block: int = 0


def top_up(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Every one of `members`, in this order, holds at least `blocks` afterwards."""
    lacking = {member: blocks - len(leases.held.get(member, ())) for member in members}
    return _grant(leases, lacking)


def extend(leases: Leases, members: Iterable[PeerId], blocks: int) -> Leases:
    """Every one of `members` gets `blocks` more, up to LEASES_HELD_MAX times as many in all."""
    most = LEASES_HELD_MAX * blocks
    more = {member: min(blocks, most - len(leases.held.get(member, ()))) for member in members}
    return _grant(leases, more)


def commit(leases: Leases, trained: Iterable[tuple[PeerId, int]]) -> Leases:
    """The first blocks of these members' leases are done for ever."""
    held = dict(leases.held)
    for member, blocks in trained:
        assert 0 < blocks <= len(held[member])
        held[member] = held[member][blocks:]
    return Leases(held, leases.returned, leases.next_block)


def give_back(leases: Leases, members: Iterable[PeerId]) -> Leases:
    """These members leave: what they hold is for others to train."""
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
