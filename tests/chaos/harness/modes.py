"""The sync modes under test: plain, and the modes in which trainers do not wait for the average.

In all modes but plain, a crashing node has more state to lose: a trainer that already does the next
work, an update that has not been merged yet, and work that exists only in the arena.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.sync import SyncSpec

STAND_IN, TORCH = "stand-in", "torch"
KINDS = (STAND_IN, TORCH)
"""Kinds of trainers. The output of stand-ins is known in advance, so their updates can be
recomputed.
"""


@dataclass(frozen=True, slots=True)
class Mode:
    """A sync mode. `inner_steps` is H; with P fragments, an outer step has H ÷ P inner steps."""

    sync: SyncSpec
    inner_steps: int


PLAIN = Mode(SyncSpec(), 2)

MODES = {
    "plain": PLAIN,
    "streaming": Mode(SyncSpec(fragments=2, overlap_steps=1, mixing=0.5), 4),
    "late": Mode(SyncSpec(overlap_steps=2), 2),
    "eager": Mode(SyncSpec(overlap_steps=2, eager=True), 2),
}
