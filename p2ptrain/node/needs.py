"""The memory that a node needs for a model, whoever asks: an organiser's plan, or a volunteer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """In bytes, beside some 150 MB for the process itself (an idle seed has 129)."""

    theta: int
    momentum: int
    local: int
    """What the trainers have trained, in memory that both share."""
    updates: int
    """The one that is made, and the one that is applied."""
    residual: int
    """What rounding has lost, and what it loses in a reduce under way, if the codec keeps it."""

    @property
    def total(self) -> int:
        return self.theta + self.momentum + self.local + self.updates + self.residual


def node_memory(numel: int, update_bytes: int, *, feedback: bool) -> NodeMemory:
    """Of a node that trains."""
    vector = 4 * numel
    return NodeMemory(vector, vector, vector, 2 * update_bytes, 2 * vector * feedback)
