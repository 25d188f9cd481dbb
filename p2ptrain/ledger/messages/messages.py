"""What ledgers say to each other, and how it stands on the wire.

    proposer ──Prepare──► voters ──Promise──► proposer         rounds after the first only
    proposer ──Propose──► voters ──Accept───► proposer         or Refused, with the reason
    proposer ──Outcome──► everybody                            an entry with its certificate
    anybody ──EntriesRequest──► anybody ──Entries──►           catching up; or Pruned
    a survivor ──ProposeBranch──► the others ──SignBranch──► it    or RefuseBranch; see `branching`
    anybody ──Accusation──► everybody                          two contradicting signatures

A message is canonical JSON: {"kind": …, its fields}. Promises, votes and proposals are signed,
everything else is as good as its contents: an Outcome or an Accusation proves itself, and the
network authenticates the sender. A proposal's signature is its proposer's own vote for it, which it
has given before it asks for others; whoever claims to have accepted an entry shows that vote.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import spell_signature
from p2ptrain.ledger.chain.values import Certified, Entry, Vote
from p2ptrain.ledger.messages.evidence import Evidence

MESSAGE_BYTES_MAX = 1 << 20
"""The largest roster with its certificate has about 300 KiB, and promises come on top."""

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
    """What a voter had accepted last, and in which round. `signature` is that of the vote of the
    round's proposer.
    """

    round: int
    entry: Entry
    signature: bytes

    def plain(self) -> list[object]:
        return [self.round, self.entry.plain(), spell_signature(self.signature)]


@dataclass(frozen=True, slots=True)
class Promise:
    """The sender will accept nothing of an earlier round. Signed (`values.promise_message`)."""

    height: int
    round: int
    accepted: Accepted | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class PromiseProof:
    """A promise as third parties need it: the entry by its digest. `proposed` is the signature of
    the vote of the accepted entry's proposer.
    """

    voter: PeerId
    accepted_round: int | None
    accepted: Digest | None
    proposed: bytes | None
    signature: bytes


@dataclass(frozen=True, slots=True)
class Propose:
    """Please accept `entry`, as the proposer has: `signature` is that of its vote. In rounds after
    the first a quorum's promises show what is free.
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
    """No vote, and why. `promised` tells a restarted proposer which rounds are behind it."""

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
    """Consecutive entries; `height` is the sender's, so that the asker knows whether more
    remain.
    """

    height: int
    certified: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The sender keeps no entry up to `up_to` any more: ask somebody else. `checkpoint` is the
    digest of the entry after it, where the sender's chain begins.
    """

    height: int
    up_to: int
    checkpoint: Digest


@dataclass(frozen=True, slots=True)
class Accusation:
    """Somebody signed two statements that contradict each other. It proves itself."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ProposeBranch:
    """The quorum is gone for long: please sign `entry`, a Branch that names you as a voter."""

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
"""What voters say to each other about one height."""

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
