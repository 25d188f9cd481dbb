"""What a simulated node gossips every two seconds, and at once upon change."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`events` is all that a hearer's ledger is told: in some beats everything, in most what is
    new.
    """

    peer: PeerId
    events: tuple[Event, ...]
