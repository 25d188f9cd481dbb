"""Compute the memory that a node needs for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2ptrain.archive.update_format import payload_bytes_mean, published_formats
from p2ptrain.ids import RunId
from p2ptrain.run import RunManifest
from p2ptrain.sync.fragments import Fragment


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of a node in bytes, in addition to about 150 MB for the process itself (129 MB
    were measured for an idle seed)."""

    theta: int
    momentum: int
    local: int
    """The trainers' local weights, in memory shared with the node."""
    updates: int
    """Two updates: the one that is being computed, and the one that is being applied."""
    residual: int
    """Two vectors of rounding errors, if the codec has error feedback: those that the next
    contribution will correct, and those of the exchange in progress."""
    fragment: int
    """Copies of a fragment of θ and of `local`, for the exchange of a fragment that is not
    contiguous in these vectors."""
    contribution: int = 0
    """In a run with claims, the quantised work of this node, from its claim until the commit."""

    @property
    def total(self) -> int:
        kept = self.theta + self.momentum + self.local + self.residual
        return kept + self.updates + self.fragment + self.contribution

    @property
    def of_seed(self) -> int:
        """The memory of a seed, which applies updates but does not compute any."""
        return self.theta + self.momentum + self.updates // 2


def node_memory(
    numel: int, update_bytes: int, *, feedback: bool, cut: Sequence[Fragment], claims: bool = False
) -> NodeMemory:
    """Return the memory of a node that trains; `cut` contains all fragments."""
    vector = 4 * numel
    copied = max((8 * each.numel for each in cut if len(each.ranges) > 1), default=0)
    residual = 2 * vector * feedback
    contribution = update_bytes * claims
    return NodeMemory(vector, vector, vector, 2 * update_bytes, residual, copied, contribution)


def memory_of(run: RunId, manifest: RunManifest) -> NodeMemory:
    """Return the memory that a node of this run needs."""
    formats = published_formats(run, manifest)
    return node_memory(
        formats[0].layout.numel,
        payload_bytes_mean(formats),
        feedback=manifest.codec.feedback,
        cut=[each.fragment for each in formats],
        claims=manifest.trust.claims,
    )
