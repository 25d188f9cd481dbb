"""The heartbeat that a simulated node gossips every two seconds, and immediately after a change."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat. `events` are for the receivers' ledgers: all reports, or only new ones."""

    peer: PeerId
    events: tuple[Event, ...]
