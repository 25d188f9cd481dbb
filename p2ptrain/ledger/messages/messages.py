"""The messages between ledgers.

    proposer ──Prepare──► voters ──Promise──► proposer         only in rounds after the first
    proposer ──Propose──► voters ──Accept───► proposer         or Refused, with the reason
    proposer ──Outcome──► everybody                            an entry with its certificate
    any peer ──EntriesRequest──► any peer ──Entries──► it      catch-up; or Pruned
    remaining voter ──ProposeBranch──► others ──SignBranch──► it    or RefuseBranch
    any peer ──Accusation──► everybody                         two contradictory signed statements
    voter ──ShowClaim──► proposer                              a claim that differs from the roster
    auditor ──ShowFinding──► everybody                         what an auditor found

Promises, votes and proposals are signed. An Outcome or an Accusation contains its own proof. The
network authenticates the sender of every message. The signature of a proposal is that of its
proposer's own vote. A promise that names an accepted entry must include that signature.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import encode_signature
from p2ptrain.ledger.chain.findings import Finding
from p2ptrain.ledger.chain.values import Certified, Entry, Vote
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.evidence import Evidence

MESSAGE_BYTES_MAX = 1 << 20
"""Maximum size of a message. The largest roster and certificate take about 300 KiB."""

PAGE_ENTRIES_MAX = 64
PAGE_BYTES_MAX = 256 << 10
"""Maximum number of entries in a page, and their maximum size. A page ends at the limit that is
reached first, but has at least one entry.
"""

REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Prepare:
    """A request to promise `round`, which the sender wants to lead."""

    height: int
    round: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry that a voter accepted last, its round, and the signature of its proposer's vote."""

    round: int
    entry: Entry
    signature: bytes

    def plain(self) -> list[object]:
        return [self.round, self.entry.plain(), encode_signature(self.signature)]


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise not to accept an entry in any round before `round`. `accepted` is what the sender
    accepted last. `signature` signs `values.promise_message`.
    """

    height: int
    round: int
    accepted: Accepted | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class PromiseProof:
    """A promise as part of a proposal: the accepted entry is named by its digest. `proposed` is the
    signature of the vote of that entry's proposer.
    """

    voter: PeerId
    accepted_round: int | None
    accepted: Digest | None
    proposed: bytes | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """A request to accept `entry`. `signature` is the signature of the proposer's own vote for it.
    In rounds after the first, `promises` of a quorum prove which entry may be proposed.
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
    """A vote for the proposed entry."""

    vote: Vote

    @property
    def height(self) -> int:
        return self.vote.height


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal to promise `round` or to vote in it, with the reason. `promised` is the highest
    round that the voter has promised, so that the proposer can use a later one.
    """

    height: int
    round: int
    promised: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """An entry that was just decided, with its certificate."""

    certified: Certified

    @property
    def height(self) -> int:
        return self.certified.entry.height


@dataclass(frozen=True, slots=True)
class EntriesRequest:
    """A request for the entries from `from_height` on."""

    from_height: int


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries. `height` is the sender's height, which shows whether it has more."""

    height: int
    certified: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """An answer that the sender has pruned the requested entries: those up to height `up_to`.
    `checkpoint` is the digest of the next entry, the first one that the sender keeps.
    """

    height: int
    up_to: int
    checkpoint: Digest


@dataclass(frozen=True, slots=True)
class Accusation:
    """Evidence that a peer signed two contradictory statements."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ShowClaim:
    """The newest claim of `peer` that the sender knows. The receiver proposed a roster with another
    one. `peer` signed the statement, so the sender need not be trusted.
    """

    peer: PeerId
    statement: ClaimStatement


@dataclass(frozen=True, slots=True)
class ShowFinding:
    """A finding about a claim. Its auditor signed it, so the sender need not be trusted."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class ProposeBranch:
    """A request to sign the Branch `entry`, which names the receiver as a voter."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class SignBranch:
    """The sender's signature for the Branch with digest `entry`: of `values.branch_message`."""

    height: int
    entry: Digest
    signature: bytes


@dataclass(frozen=True, slots=True)
class RefuseBranch:
    """A refusal to sign a Branch, with the reason."""

    height: int
    reason: str


VoteMessage = Prepare | Promise | Propose | Accept | Refused
"""The messages of voters about one height."""

BranchMessage = ProposeBranch | SignBranch | RefuseBranch
"""The messages about a new branch."""

Message = (
    VoteMessage
    | Outcome
    | EntriesRequest
    | Entries
    | Pruned
    | Accusation
    | ShowClaim
    | ShowFinding
    | BranchMessage
)
