"""The events that a node reports to its ledger. All except Tick may arrive late, twice, out of
order, or never.

Most events are reports (`peer_reports`). The others are messages of other ledgers, events that
concern this ledger itself, and the passing of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.messages import Message
from p2ptrain.ledger.messages.peer_reports import (
    AnyReport,
    Joining,
    Leaving,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    Staying,
)


@dataclass(frozen=True, slots=True)
class Received:
    """A ledger message from `sender`, which the network has authenticated."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class PeerHeight:
    """`peer` states in a heartbeat that its chain has `height` entries and is on `line` (None in a
    run without branches). A peer's reports are about the line that it last stated.
    """

    peer: PeerId
    height: int
    line: LineId | None = None


@dataclass(frozen=True, slots=True)
class Accused:
    """Evidence from this node's disk or from another source. The ledger checks it before use."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class CloneFound:
    """Another live process has proved that it has this node's identity (E6 in SPEC.md). `what`
    describes the proof in words.
    """

    what: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Received | AnyReport | PeerHeight | Accused | CloneFound | Tick


def author_of(event: Event) -> PeerId | None:
    """Return the peer that reported `event`; None for events that only this node can report."""
    match event:
        case Received(sender):
            return sender
        case (
            PeerHeight(peer)
            | Joining(peer)
            | Ready(peer)
            | ReduceDone(peer)
            | ReduceFailed(peer)
            | SnapshotTaken(peer)
            | Leaving(peer)
            | Staying(peer)
        ):
            return peer
        case _:
            return None
