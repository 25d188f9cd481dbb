"""The events that a node passes to its ledger. All except Tick may arrive late, twice, out of
order, or never.

Most events are reports (`peer_reports`). The others are messages of other ledgers, evidence, peers'
heights, proof that another process uses this identity, and the passing of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.messages import Message
from p2ptrain.ledger.messages.peer_reports import AnyReport, OwnReport


@dataclass(frozen=True, slots=True)
class Received:
    """A ledger message from `sender`, which the network has authenticated."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class PeerHeight:
    """`peer` states in a heartbeat that its chain has `height` entries and is on `line` (the run or
    a branch; None in a run without branches). Its later reports are about that line.
    """

    peer: PeerId
    height: int
    line: LineId | None = None


@dataclass(frozen=True, slots=True)
class Accused:
    """Evidence that a voter lied, from disk or elsewhere. The ledger checks it before use."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class CloneFound:
    """Another live process has proved that it has this node's identity. `what` is the proof."""

    what: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Received | AnyReport | PeerHeight | Accused | CloneFound | Tick


def author_of(event: Event) -> PeerId | None:
    """Return the peer that sent or stated `event`; None if it is this node's own event."""
    if isinstance(event, Received):
        return event.sender
    return event.peer if isinstance(event, PeerHeight | OwnReport) else None
