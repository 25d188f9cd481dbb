"""The messages between ledgers.

    proposer ──Prepare──► voters ──Promise──► proposer         only in rounds after the first
    proposer ──Propose──► voters ──Accept───► proposer         or Refused, with the reason
    proposer ──Outcome──► everybody                            an entry with its certificate
    any peer ──EntriesRequest──► any peer ──Entries──► it      catch-up; or Pruned
    remaining voter ──ProposeBranch──► others ──SignBranch──► it    or RefuseBranch
    any peer ──Accusation──► everybody                         two contradictory signed statements

A message is canonical JSON: {"kind": …, its fields}. Promises, votes and proposals are signed. An
Outcome or an Accusation contains its own proof. The network authenticates the sender of every
message. The signature of a proposal is its proposer's own vote. A voter that claims to have
accepted an entry must include that signature.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import encode_signature
from p2ptrain.ledger.chain.values import Certified, Entry, Vote
from p2ptrain.ledger.messages.evidence import Evidence

MESSAGE_BYTES_MAX = 1 << 20
"""Maximum size of a message. The largest roster with its certificate takes about 300 KiB; promises
come in addition.
"""

PAGE_ENTRIES_MAX = 64
PAGE_BYTES_MAX = 256 << 10
"""Maximum number of entries in a page, and their maximum size. A page ends at the limit that is
reached first, but has at least one entry.
"""

REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Prepare:
    height: int
    round: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry that a voter accepted last, and its round. `signature` belongs to the vote of that
    round's proposer.
    """

    round: int
    entry: Entry
    signature: bytes

    def plain(self) -> list[object]:
        return [self.round, self.entry.plain(), encode_signature(self.signature)]


@dataclass(frozen=True, slots=True)
class Promise:
    """The sender will not accept an entry in any round before `round`. `signature` signs
    `values.promise_message`.
    """

    height: int
    round: int
    accepted: Accepted | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class PromiseProof:
    """A promise in a form that third parties can check: it names the entry by digest. `proposed` is
    the signature of the accepted entry's proposer.
    """

    voter: PeerId
    accepted_round: int | None
    accepted: Digest | None
    proposed: bytes | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """A request to accept `entry`. The proposer has already accepted it: `signature` belongs to its
    vote. In rounds after the first, `promises` of a quorum prove which entry may be proposed.
    """

    round: int
    entry: Entry
    signature: bytes
    promises: tuple[PromiseProof, ...] = ()

    @property
    def height(self) -> int:
        return self.entry.height


@dataclass(frozen=True, slots=True)
class Accept:
    vote: Vote

    @property
    def height(self) -> int:
        return self.vote.height


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal to vote, with the reason. `promised` is the highest round that the voter has
    promised, so that a restarted proposer can use a later one.
    """

    height: int
    round: int
    promised: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    certified: Certified

    @property
    def height(self) -> int:
        return self.certified.entry.height


@dataclass(frozen=True, slots=True)
class EntriesRequest:
    from_height: int


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries. `height` is the sender's height; it shows whether more remain."""

    height: int
    certified: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The sender no longer keeps the entries up to `up_to`: ask another peer. `checkpoint` is the
    digest of the next entry, the first one that the sender keeps.
    """

    height: int
    up_to: int
    checkpoint: Digest


@dataclass(frozen=True, slots=True)
class Accusation:
    """Evidence that a peer signed two contradictory statements. It contains its own proof."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ProposeBranch:
    """A request to sign `entry`, a Branch that names the receiver as a voter, because the quorum
    has been gone for a long time.
    """

    entry: Entry


@dataclass(frozen=True, slots=True)
class SignBranch:
    """A signature of `values.branch_message`."""

    height: int
    entry: Digest
    signature: bytes


@dataclass(frozen=True, slots=True)
class RefuseBranch:
    height: int
    reason: str


VoteMessage = Prepare | Promise | Propose | Accept | Refused
"""The messages of voters about one height."""

Message = (
    VoteMessage
    | Outcome
    | EntriesRequest
    | Entries
    | Pruned
    | Accusation
    | ProposeBranch
    | SignBranch
    | RefuseBranch
)
