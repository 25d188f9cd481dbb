"""The sync modes that nodes are struck in: plain, and those where trainers do not wait for means.

There a node dies with more than a plain one has: a trainer that is ahead of θ, a mean that is
pending, work that lies in the arena alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.sync import SyncSpec

STAND_IN, TORCH = "stand-in", "torch"
KINDS = (STAND_IN, TORCH)
"""Kinds of trainers. The work of stand-ins is known in advance, so updates can be recomputed."""


@dataclass(frozen=True, slots=True)
class Mode:
    """`inner_steps` are H; an outer step is H ÷ P of them."""

    sync: SyncSpec
    inner_steps: int


PLAIN = Mode(SyncSpec(), 2)

MODES = {
    "plain": PLAIN,
    "streaming": Mode(SyncSpec(fragments=2, overlap_steps=1, mixing=0.5), 4),
    "late": Mode(SyncSpec(overlap_steps=2), 2),
    "eager": Mode(SyncSpec(overlap_steps=2, eager=True), 2),
}
