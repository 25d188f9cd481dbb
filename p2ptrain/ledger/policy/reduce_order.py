"""In which order the participants of a reduce stand, and by which schedule they average.

Both are the proposer's to choose: any permutation and any schedule will do, since all of them run
what the agreed roster says. A good choice needs to know rates, delays and who can be dialled, of
which the ledger knows nothing: so it is made by a function from outside, when the proposal is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Roster, Schedule, Value

Arrange = Callable[[Sequence[PeerId]], tuple[Schedule, Sequence[PeerId]]]
"""arrange(peers): the schedule, and the same peers in the order in which they are to average."""


def as_they_come(peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
    """The order of the ranks, or of the attempt before."""
    return "ring", peers


def arranged(value: Value, arrange: Arrange) -> Value:
    """A roster that opens a reduce, in the order and by the schedule chosen; all else as it is."""
    if not isinstance(value, Roster) or not value.participants:
        return value
    schedule, order = arrange(value.peers)
    parts = {each.peer: each for each in value.participants}
    assert len(order) == len(parts), "arranging adds nobody and drops nobody"
    return replace(value, participants=tuple(parts[peer] for peer in order), schedule=schedule)
