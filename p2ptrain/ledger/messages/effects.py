"""The effects that the ledger asks its node to carry out, in the order of the list.

The order is part of the protocol: a `Persist` or a `Decided` is on disk, fsynced, before any later
`Send` or `Announce` of any list leaves this machine. A node that cannot write must stop, not go on.
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
    """Send `message` to `peer`. It may be lost; what matters is sent again."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Announce:
    """Send `message` to everybody by gossip. It may be lost: a peer that missed it asks when it
    hears our height.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class Decided:
    """The next entry of the chain. Append it durably, then act on it."""

    certified: Certified


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Leave our branch for a chain that outranks it.

    Replace all entries above `height` by `chain`, durably and in one step, and drop everything
    derived from them. Then go on from there as a newcomer does, with a new Ledger. This Ledger has
    ended: it ignores all events and returns no more effects.
    """

    height: int
    chain: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class FetchUpdate:
    """Get these bytes from one of `holders` unless they are here already, then report UpdateHeld.

    The ledger repeats this effect while it waits; a fetch under way need not be started again.
    """

    update: Digest
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Send an EntriesRequest to `peer`, and report the Entries as Received. This may fail
    silently.
    """

    peer: PeerId
    from_height: int


@dataclass(frozen=True, slots=True)
class Accuse:
    """Store this evidence durably, and report it as Accused after each restart.

    This effect comes once for each accused peer; storing it twice is harmless. If `evidence.peer`
    is this node, a copy of it has voted on its own: tell the operator.
    """

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class VotingStopped:
    """A message in this node's name is not in its records: another process uses the same identity,
    or this one lost its records. From now on the ledger follows but does not vote until the process
    is restarted. Tell the operator.
    """

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
    | VotingStopped
    | Note
)
