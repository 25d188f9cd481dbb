"""The order of a reduce's participants, and the schedule (communication pattern) of their
averaging.

The proposer chooses both. Any permutation and any schedule is valid, since all participants follow
the agreed roster. A good choice depends on rates, delays and on which peers accept connections. The
ledger does not know these, so the caller supplies the function that chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Roster, Schedule, Value

Arrange = Callable[[Sequence[PeerId]], tuple[Schedule, Sequence[PeerId]]]
"""arrange(peers) returns a schedule, and the same peers in the order in which they average."""


def in_given_order(peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
    """Keep the given order, and use a ring."""
    return "ring", peers


def arranged(value: Value, arrange: Arrange) -> Value:
    """Return `value` with the order and schedule that `arrange` chooses, if it is a roster that
    opens a reduce. Return any other value unchanged.
    """
    if not isinstance(value, Roster) or not value.participants:
        return value
    schedule, order = arrange(value.peers)
    parts = {each.peer: each for each in value.participants}
    assert len(order) == len(parts), "the order must contain exactly the given peers"
    return replace(value, participants=tuple(parts[peer] for peer in order), schedule=schedule)
