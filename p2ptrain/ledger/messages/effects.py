"""The effects that the ledger asks its node to carry out, in the order of the list.

The order is part of the protocol: a `Persist` or `Decided` must be fsynced to disk before any later
`Send` or `Announce`, in this list or a later one, leaves this machine. A node that cannot write
must stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.messages import Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Append `record` to the log of votes and fsync it BEFORE any later Send or Announce."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `peer`. It may be lost; the ledger repeats messages that need an answer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Announce:
    """Send `message` to all peers by gossip. It may be lost: a peer that missed an entry asks for
    it when it hears our height.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class Decided:
    """Append this entry to the chain on disk, durably. Then act on it."""

    certified: Certified


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Leave our branch for a chain that outranks it.

    Durably and atomically replace all entries above `height` with `chain`, and drop everything
    derived from the replaced entries. Then start a new Ledger with the resulting chain. This Ledger
    has ended: it ignores all events and returns no more effects.
    """

    height: int
    chain: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class FetchUpdate:
    """Fetch this update from one of `holders` unless it is already stored, then report UpdateHeld.

    The ledger repeats this effect while it waits. Do not start a second fetch of the same update.
    """

    update: Digest
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Send an EntriesRequest to `peer`, and report the answer as Received. Both may be lost."""

    peer: PeerId
    from_height: int


@dataclass(frozen=True, slots=True)
class Accuse:
    """Store this evidence durably, and report it as Accused after each restart.

    A ledger returns this effect once for each accused peer, even if the evidence is stored already.
    If `evidence.peer` is this node, a second process has voted as this node: tell the operator.
    """

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class VotingStopped:
    """Tell the operator that this process no longer votes, because another process uses the same
    identity (`what` says how this node knows). The ledger still follows the chain. Restart the
    process to let it vote again.
    """

    what: str


@dataclass(frozen=True, slots=True)
class VoteWithheld:
    """Write to the journal that this node does not vote at `height`. It received a statement that
    is signed with its key and missing from its records. It has lost records, or another process
    uses its identity.
    """

    height: int
    what: str


@dataclass(frozen=True, slots=True)
class Note:
    """Write a decision and its reason to the journal. Nothing depends on it."""

    text: str


Effect = (
    Persist
    | Send
    | Announce
    | Decided
    | Rejoin
    | FetchUpdate
    | AskEntries
    | Accuse
    | VoteWithheld
    | VotingStopped
    | Note
)
