"""The heartbeat that a simulated node gossips every two seconds, and at once after a change."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Event


@dataclass(frozen=True, slots=True)
class SimHeartbeat:
    """`events` are passed to the receiver's ledger. Some heartbeats repeat all reports; most of
    them contain only new ones.
    """

    peer: PeerId
    events: tuple[Event, ...]
