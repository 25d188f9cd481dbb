"""Compute the memory that a node needs for a model, for organisers and volunteers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2ptrain.archive.update_format import payload_bytes_mean, published_formats
from p2ptrain.ids import RunId
from p2ptrain.run import RunManifest
from p2ptrain.sync import Merge
from p2ptrain.sync.fragments import Fragment


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory in bytes, beside some 150 MB for the process itself (an idle seed has 129)."""

    theta: int
    momentum: int
    local: int
    """The trainers' local weights, in memory shared with the node."""
    updates: int
    """The update that is being made, and the one that is being applied."""
    residual: int
    """Rounding errors kept by error feedback: those owed, and those of the reduce under way."""
    fragment: int
    """Copies of θ and `local` for an exchanged fragment that is not contiguous; with `rda`, also
    the contribution in place of their difference."""
    merged: int
    """The form in which an update is applied, with `rda`."""

    @property
    def total(self) -> int:
        kept = self.theta + self.momentum + self.local + self.residual
        return kept + self.updates + self.fragment + self.merged

    @property
    def of_seed(self) -> int:
        """The memory of a seed, which applies every update and makes none."""
        return self.theta + self.momentum + self.updates // 2 + self.merged


def node_memory(
    numel: int, update_bytes: int, *, feedback: bool, cut: Sequence[Fragment], merge: Merge
) -> NodeMemory:
    """Return the memory of a node that trains; `cut` contains all fragments."""
    vector, is_radial = 4 * numel, merge == "rda"
    longest = max(4 * each.numel for each in cut)
    copied = max((8 * each.numel for each in cut if len(each.ranges) > 1), default=0)
    return NodeMemory(
        vector,
        vector,
        vector,
        2 * update_bytes,
        2 * vector * feedback,
        copied + longest * is_radial,
        2 * longest * is_radial,
    )


def memory_of(run: RunId, manifest: RunManifest) -> NodeMemory:
    """Return the memory that a node of this run needs."""
    formats = published_formats(run, manifest)
    return node_memory(
        formats[0].layout.numel,
        payload_bytes_mean(formats),
        feedback=manifest.codec.feedback,
        cut=[each.fragment for each in formats],
        merge=manifest.sync.merge,
    )
