"""The memory that a node needs for a model, whoever asks: an organiser's plan, or a volunteer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2ptrain.archive.update_format import UpdateFormat
from p2ptrain.ids import RunId
from p2ptrain.run import RunManifest
from p2ptrain.sync import Merge
from p2ptrain.sync.fragments import Fragment


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
    fragment: int
    """θ and `local` of the fragment that is exchanged, copied where it is not all of one piece; and
    what is contributed in place of their difference, if the run has `rda`."""
    merged: int
    """What an update is made into to be applied, if the run has `rda`."""

    @property
    def total(self) -> int:
        kept = self.theta + self.momentum + self.local + self.residual
        return kept + self.updates + self.fragment + self.merged

    @property
    def of_seed(self) -> int:
        """It applies every update, and makes none."""
        return self.theta + self.momentum + self.updates // 2 + self.merged


def node_memory(
    numel: int, update_bytes: int, *, feedback: bool, cut: Sequence[Fragment], merge: Merge
) -> NodeMemory:
    """Of a node that trains; `cut` are all fragments."""
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
    """What a node of this run takes."""
    form = UpdateFormat.of(run, manifest)
    return node_memory(
        form.layout.numel,
        form.payload_bytes_mean,
        feedback=manifest.codec.feedback,
        cut=form.fragments,
        merge=form.merge,
    )
