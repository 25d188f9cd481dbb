"""The effects that the ledger asks its node to carry out, in the order of the list.

The order is part of the protocol: a `Persist` or a `Decided` must be fsynced to disk before any
later `Send` or `Announce` of any list leaves this machine. A node that cannot write must stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.messages import Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Append `record` to the log of votes and fsync it, BEFORE any later Send or Announce."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `peer`. It may be lost; the ledger repeats important messages."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Announce:
    """Send `message` to all peers by gossip. It may be lost: a peer that missed it asks for entries
    when it hears our height.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class Decided:
    """The next entry of the chain. Append it durably, then act on it."""

    certified: Certified


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Leave our branch for a chain that outranks it.

    Durably and atomically replace all entries above `height` with `chain`, and drop everything
    derived from them. Then start a new Ledger from there, as a newcomer does. This Ledger has
    ended: it ignores all events and returns no more effects.
    """

    height: int
    chain: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class FetchUpdate:
    """Fetch this update from one of `holders` unless it is already stored, then report UpdateHeld.

    The ledger repeats this effect while it waits; a fetch in progress does not have to be
    restarted.
    """

    update: Digest
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Send an EntriesRequest to `peer`, and report the Entries as Received. It may be lost."""

    peer: PeerId
    from_height: int


@dataclass(frozen=True, slots=True)
class Accuse:
    """Store this evidence durably, and report it as Accused after each restart.

    This effect is returned once for each accused peer; storing evidence twice is harmless. If
    `evidence.peer` is this node, a second process with its identity has voted: tell the operator.
    """

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class VotingStopped:
    """Another process uses this node's identity. The ledger still follows the chain, but does not
    vote until the process is restarted. Tell the operator.
    """

    what: str


@dataclass(frozen=True, slots=True)
class VoteWithheld:
    """This node does not vote at `height`. It received a statement that is signed with its key and
    missing from its records: it has lost records, or another process uses its identity.
    """

    height: int
    what: str


@dataclass(frozen=True, slots=True)
class Note:
    """A decision and its reason, for the journal. Nothing depends on it."""

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
