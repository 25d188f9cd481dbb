"""What the ledger asks its node to do, in the order of the list.

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
    """Tell everybody. May be lost: who missed it asks when it hears our height."""

    message: Message


@dataclass(frozen=True, slots=True)
class Decided:
    """The next entry of the chain: append it durably, then act on it."""

    certified: Certified


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Our branch is left for a chain that outranks it: put `chain` in place of all entries above
    `height`, durably and in one step, drop what was made of those, and go on from there as a
    newcomer does, with a new Ledger. This one is over: it neither hears nor says anything.
    """

    height: int
    chain: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class FetchUpdate:
    """Get these bytes from one of `holders` (perhaps they are here already), then say UpdateHeld.

    Repeated while the ledger waits; a fetch that is under way need not be started again.
    """

    update: Digest
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AskEntries:
    """Send an EntriesRequest to `peer`, and hand the Entries in as Received. May fail silently."""

    peer: PeerId
    from_height: int


@dataclass(frozen=True, slots=True)
class Accuse:
    """Keep this evidence durably, one file a peer, and hand it in as Accused after each restart.

    It comes once for each accused peer; writing it twice is harmless. If `evidence.peer` is this
    node, a copy of it has voted on its own: tell the operator.
    """

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class IdentityInUse:
    """Something was said in this node's name that its records do not have: another process uses
    the same identity, or this one lost its records. From now on the ledger follows, but does not
    vote, until the process is started again. Tell the operator.
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
    | IdentityInUse
    | Note
)
