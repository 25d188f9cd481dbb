"""Choose the kind of each node of a simulated world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.simulation.auditing import AuditingNode
from p2ptrain.simulation.liars.audit_liar import AuditLiar
from p2ptrain.simulation.liars.claim_liar import ClaimLiar
from p2ptrain.simulation.liars.liar import Liar
from p2ptrain.simulation.liars.spoiling import Spoiler
from p2ptrain.simulation.liars.sybil import Ally, Sybil
from p2ptrain.simulation.node import SimNode
from p2ptrain.simulation.pruner import Pruner, base_for_newcomer

if TYPE_CHECKING:
    from p2ptrain.simulation.world import SimWorld

BEGINS_AT_A_BASE = 0.5
"""Probability that a joining node that deletes old entries is given a checkpoint."""


def kind_of(world: SimWorld, name: PeerId) -> Callable[..., SimNode]:
    """Return the constructor of the node `name`."""
    random, profile = world.random, world.profile
    if name in world.sybils:
        return partial(Sybil, random=random, crowd=world.sybils, tricks=world.tricks)
    if name in world.liars and profile.claim_liars:
        return partial(ClaimLiar, random=random)
    if name in world.liars and profile.audit_liars:
        return partial(AuditLiar, random=random)
    if name in world.liars:
        ally = partial(Ally, crowd=world.sybils)
        return partial(ally if world.sybils else Liar, random=random)
    if name in world.spoilers:
        return partial(Spoiler, random=random)
    if profile.audits:
        return AuditingNode
    if world.keeper in (None, name) or random.random() >= profile.pruners:
        return SimNode
    base = None
    if name not in world.rules.founders and random.random() < BEGINS_AT_A_BASE:
        whole = world.nodes[world.rules.founders[0]].ledger.kept
        base = base_for_newcomer(world.rules, whole, random)
    return partial(Pruner, keep_entries=profile.keep_entries, base=base)
