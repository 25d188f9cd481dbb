"""The answer of the policy: what this node wants to propose now."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Value


@dataclass(frozen=True, slots=True)
class Wish:
    """The value to propose, or None. `look_again_at` is when to compute the wish again even if no
    report arrives.
    """

    value: Value | None
    reason: str
    waiting_for: tuple[PeerId, ...] = ()
    look_again_at: float | None = None
