"""What a simulated node gossips every two seconds, and at once upon change."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.events import Event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A whole report: `events` is all that a hearer's ledger is told."""

    peer: PeerId
    events: tuple[Event, ...]
