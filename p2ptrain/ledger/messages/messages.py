"""The messages between ledgers, and their form on the wire.

    proposer ──Prepare──► voters ──Promise──► proposer         rounds after the first only
    proposer ──Propose──► voters ──Accept───► proposer         or Refused, with the reason
    proposer ──Outcome──► everybody                            an entry with its certificate
    anybody ──EntriesRequest──► anybody ──Entries──►           catching up; or Pruned
    a survivor ──ProposeBranch──► the others ──SignBranch──► it    or RefuseBranch
    anybody ──Accusation──► everybody                          two contradicting signatures

A message is canonical JSON: {"kind": …, its fields}. Promises, votes and proposals are signed. An
Outcome or an Accusation contains its own proof. The network authenticates the sender of any
message. A proposal's signature is its proposer's own vote, given before it asks for others; a voter
that claims to have accepted an entry shows that vote.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import encode_signature
from p2ptrain.ledger.chain.values import Certified, Entry, Vote
from p2ptrain.ledger.messages.evidence import Evidence

MESSAGE_BYTES_MAX = 1 << 20
"""Largest message. The largest roster with its certificate takes about 300 KiB, and promises are
added to it.
"""

PAGE_ENTRIES_MAX = 64
PAGE_BYTES_MAX = 256 << 10
"""A page of entries stops at either bound, but holds at least one entry."""

REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Prepare:
    height: int
    round: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry that a voter had accepted last, and in which round. `signature` is that of the vote
    of the round's proposer.
    """

    round: int
    entry: Entry
    signature: bytes

    def plain(self) -> list[object]:
        return [self.round, self.entry.plain(), encode_signature(self.signature)]


@dataclass(frozen=True, slots=True)
class Promise:
    """The sender will accept nothing of an earlier round. Signed (`values.promise_message`)."""

    height: int
    round: int
    accepted: Accepted | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class PromiseProof:
    """A promise in the form that third parties need: it names the entry by digest. `proposed` is
    the signature of the vote of the accepted entry's proposer.
    """

    voter: PeerId
    accepted_round: int | None
    accepted: Digest | None
    proposed: bytes | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """A request to accept `entry`, which the proposer has accepted itself: `signature` is that of
    its vote. In rounds after the first, `promises` of a quorum show which entry may be proposed.
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
    """A refusal to vote, with the reason. `promised` tells a restarted proposer which rounds are
    behind it.
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
    """Consecutive entries. `height` is the sender's height, so that the asker knows whether more
    remain.
    """

    height: int
    certified: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The sender no longer keeps the entries up to `up_to`: ask another peer. `checkpoint` is the
    digest of the entry after them, with which the sender's chain begins.
    """

    height: int
    up_to: int
    checkpoint: Digest


@dataclass(frozen=True, slots=True)
class Accusation:
    """Evidence that a peer signed two statements that contradict each other. It contains its own
    proof.
    """

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ProposeBranch:
    """A request to sign `entry`, a Branch that names the receiver as a voter, since the quorum has
    been gone for long.
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
