"""The values of the ledger: rosters, commits, skips, branches, entries, votes, certificates.

All are frozen and checked on construction, so an ill-formed value cannot exist. `apply.why_invalid`
says whether a value fits the chain, and `verify` whether a certificate is genuine. `plain` returns
a value that canonical JSON can encode; `messages/decode_values.py` decodes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.ledger.chain.canonical import (
    canonical,
    digest_of,
    encode_signature,
)

LineId = RunId | Digest
"""The line that a vote belongs to: the run, or the Branch entry that a branch of the run began
with.
"""

Schedule = Literal["ring", "direct", "grid"]
"""The route of sums and means in a reduce. The ledger does not care what each schedule does."""
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

MEMBERS_MAX = 1024
"""Most members of a roster. Such a roster with its certificate still fits one message (1 MiB)."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A member that takes part in a reduce. `tokens` is its weight, `blocks` the number of blocks
    of its lease that it has trained.
    """

    peer: PeerId
    tokens: int
    blocks: int

    def __post_init__(self) -> None:
        _check(self.tokens > 0 and self.blocks > 0, "a participant has tokens and blocks")


TERMS_MAX = 64
"""Most amendments of a run. A person writes each of them, now and then."""

LEASE_BLOCKS_MAX = 1 << 20
"""Most data blocks of one lease. A larger lease is a mistake."""


@dataclass(frozen=True, slots=True)
class Terms:
    """An amendment, identified by its number and digest. It holds from outer step `step` on.
    `blocks` is the size of a lease from then on, or None if the amendment does not change it.
    """

    number: int
    step: int
    digest: Digest
    blocks: int | None = None

    def __post_init__(self) -> None:
        _check(self.number > 0 and self.step > 0, "amendments count from 1, and leave step 0 alone")
        _check(is_digest(self.digest), "an amendment is named by its digest")
        fits = self.blocks is None or 0 < self.blocks <= LEASE_BLOCKS_MAX
        _check(fits, "a lease has some blocks, and not too many")

    def plain(self) -> list[object]:
        return [self.number, self.step, self.digest, self.blocks]


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of the run, and the participants of the reduce that it opens, if any.

    `voters` are ranked. `participants` stand in the order in which they average by `schedule`. A
    roster without participants only changes membership; any other opens reduce (step, attempt).
    `terms` is an amendment for a later step that is agreed with the roster (see the module
    `terms`). `peers` are the participants' ids.
    """

    step: int
    attempt: int
    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...]
    participants: tuple[Participant, ...] = ()
    schedule: Schedule = "ring"
    terms: Terms | None = None
    peers: tuple[PeerId, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        members = set(self.voters) | set(self.learners)
        _check(self.step >= 0 and self.attempt >= 0, "steps and attempts count from 0")
        _check(len(self.voters) > 0, "a roster has a voter")
        _check(len(members) == len(self.voters) + len(self.learners), "a member is named once")
        _check(len(members) <= MEMBERS_MAX, f"a roster has at most {MEMBERS_MAX} members")
        object.__setattr__(self, "peers", tuple(each.peer for each in self.participants))
        averaging = set(self.peers)
        _check(len(averaging) == len(self.participants), "a participant is named once")
        _check(averaging <= members, "participants are members")
        _check(self.schedule in SCHEDULES, "a schedule is one of those that there are")
        _check(bool(averaging) or self.schedule == "ring", "nobody averages by another schedule")

    @property
    def members(self) -> tuple[PeerId, ...]:
        return self.voters + self.learners

    def plain(self) -> dict[str, object]:
        participants = [[each.peer, each.tokens, each.blocks] for each in self.participants]
        return {
            "kind": "roster",
            "step": self.step,
            "attempt": self.attempt,
            "voters": list(self.voters),
            "learners": list(self.learners),
            "participants": participants,
            "schedule": self.schedule,
            "terms": None if self.terms is None else self.terms.plain(),
        }


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A snapshot of θ and m before outer step `step`, by digest."""

    step: int
    digest: Digest

    def __post_init__(self) -> None:
        _check(self.step >= 0 and is_digest(self.digest), "a snapshot has a step and a digest")

    def plain(self) -> list[object]:
        return [self.step, self.digest]


@dataclass(frozen=True, slots=True)
class Commit:
    """Outer step `step` ends with this update, the result of reduce (step, attempt).

    If it names a snapshot, `state` is the digest of the ledger's state that the Commit applies to.
    A node that trusts the Commit then does not need the entries before it.
    """

    step: int
    attempt: int
    update: Digest
    snapshot: SnapshotRef | None = None
    state: Digest | None = None

    def __post_init__(self) -> None:
        _check(self.step >= 0 and self.attempt >= 0, "steps and attempts count from 0")
        _check(is_digest(self.update), "an update is named by its digest")
        together = (self.snapshot is None) is (self.state is None)
        _check(together, "a snapshot and the digest of the state are named together")
        _check(self.state is None or is_digest(self.state), "a state is named by its digest")

    def plain(self) -> dict[str, object]:
        return {
            "kind": "commit",
            "step": self.step,
            "attempt": self.attempt,
            "update": self.update,
            "snapshot": None if self.snapshot is None else self.snapshot.plain(),
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class Skip:
    """Outer step `step` ends without an update, because its attempts are used up. Nobody applies
    anything.
    """

    step: int

    def __post_init__(self) -> None:
        _check(self.step >= 0, "steps count from 0")

    def plain(self) -> dict[str, object]:
        return {"kind": "skip", "step": self.step}


@dataclass(frozen=True, slots=True)
class Branch:
    """The quorum is gone, and these members go on without it. From here on the chain has its own
    line.

    It is certified by the signatures of all its `voters`, which keep their ranks. Nobody votes on
    it.
    """

    step: int
    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...] = ()

    def __post_init__(self) -> None:
        members = set(self.members)
        _check(self.step >= 0, "steps count from 0")
        _check(len(self.voters) > 0, "a branch has a voter")
        _check(len(members) == len(self.voters) + len(self.learners), "a member is named once")
        _check(len(members) <= MEMBERS_MAX, f"a branch has at most {MEMBERS_MAX} members")

    @property
    def members(self) -> tuple[PeerId, ...]:
        return self.voters + self.learners

    def plain(self) -> dict[str, object]:
        return {
            "kind": "branch",
            "step": self.step,
            "voters": list(self.voters),
            "learners": list(self.learners),
        }


@dataclass(frozen=True, slots=True)
class Heal:
    """The last entry of a branch. Its members then follow the chain that has `entry` at
    `height`.
    """

    step: int
    height: int
    entry: Digest

    def __post_init__(self) -> None:
        _check(self.step >= 0 and self.height > 0, "steps count from 0, heights from 1")
        _check(is_digest(self.entry), "an entry is named by its digest")

    def plain(self) -> dict[str, object]:
        return {"kind": "heal", "step": self.step, "height": self.height, "entry": self.entry}


Value = Roster | Commit | Skip | Branch | Heal


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at its place in the chain. `digest` identifies the entry and all entries before
    it.
    """

    height: int
    parent: Digest
    value: Value
    digest: Digest = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.height > 0 and is_digest(self.parent), "an entry has a height and a parent")
        object.__setattr__(self, "digest", digest_of(b"p2ptrain-entry/1", self.plain()))

    def plain(self) -> dict[str, object]:
        return {"height": self.height, "parent": self.parent, "value": self.value.plain()}


@dataclass(frozen=True, slots=True)
class Vote:
    """A voter's signed statement that it has durably accepted an entry in a round."""

    line: LineId
    height: int
    round: int
    entry: Digest
    voter: PeerId
    signature: bytes

    @property
    def message(self) -> bytes:
        return vote_message(self.line, self.height, self.round, self.entry)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The votes of a quorum for one entry in one round, sorted by voter."""

    height: int
    round: int
    entry: Digest
    votes: tuple[tuple[PeerId, bytes], ...]

    def __post_init__(self) -> None:
        _check(len(self.votes) <= MEMBERS_MAX, "a certificate has at most a vote per member")
        names = [voter for voter, _ in self.votes]
        _check(names == sorted(set(names)), "a certificate's votes are sorted, one per voter")

    @property
    def voters(self) -> frozenset[PeerId]:
        return frozenset(voter for voter, _ in self.votes)

    def plain(self) -> dict[str, object]:
        votes = [[voter, encode_signature(signature)] for voter, signature in self.votes]
        return {"height": self.height, "round": self.round, "entry": self.entry, "votes": votes}


@dataclass(frozen=True, slots=True)
class Certified:
    """An entry with the proof that a quorum accepted it. Nodes store, send and replay these."""

    entry: Entry
    certificate: Certificate

    def plain(self) -> dict[str, object]:
        return {"entry": self.entry.plain(), "certificate": self.certificate.plain()}


def vote_message(line: LineId, height: int, round: int, entry: Digest) -> bytes:
    """Return the bytes that a vote signs. Their domain prevents use as any other statement."""
    return _spelled(b"p2ptrain-vote/1\n", line, height, round, entry)


def promise_message(
    line: LineId, height: int, round: int, accepted_round: int | None, accepted: Digest | None
) -> bytes:
    """Return the bytes that a promise signs: its round, and what the voter had accepted by then."""
    parts = (line, height, round, accepted_round, accepted)
    return _spelled(b"p2ptrain-promise/1\n", *parts)


@lru_cache(maxsize=256, typed=True)
def _spelled(domain: bytes, *parts: str | int | None) -> bytes:
    """Encode a statement. All votes of a certificate sign the same bytes, so they are cached."""
    return domain + canonical(parts)


def branch_message(line: LineId, entry: Entry) -> bytes:
    """Return the bytes that the voters of a branch sign. Their domain keeps a vote from counting as
    consent to go on without a quorum.
    """
    return b"p2ptrain-branch/1\n" + canonical([line, entry.height, entry.parent, entry.digest])


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
