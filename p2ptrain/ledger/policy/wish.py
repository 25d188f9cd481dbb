"""The policy's answer to the question what this node should propose now."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Value


@dataclass(frozen=True, slots=True)
class Wish:
    """The value to propose, or None to wait. `reason` says why, and `waiting_for` names the peers
    that this node waits for; the status shows both to users. `look_again_at` is when to compute the
    wish again even if no report arrives.
    """

    value: Value | None
    reason: str
    waiting_for: tuple[PeerId, ...] = ()
    look_again_at: float | None = None
