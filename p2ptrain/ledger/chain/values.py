"""The values of the ledger: rosters, commits, skips, branches, heals, entries, votes, certificates.
Verdicts are in `findings`.

All are frozen and checked on construction, so an ill-formed value cannot exist. `apply.why_invalid`
says whether a value can come next in the chain, and `verify` checks certificates. `plain` returns
the form that canonical JSON can encode; `chain/decode_values.py` decodes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.ledger.chain.canonical import canonical, digest_of, encode_signature
from p2ptrain.ledger.chain.findings import Verdict

LineId = RunId | Digest
"""The name of a line: the run's id for the run's first line, or the digest of the Branch entry that
began the line. A vote counts only on the line that it names.
"""

Schedule = Literal["ring", "direct", "grid"]
"""The pattern in which participants exchange sums and means. The ledger does not interpret it."""
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

MEMBERS_MAX = 1024
"""Maximum number of members. The largest roster with its certificate fits in one message."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A member that takes part in a reduce (the averaging of an outer step). `tokens` is its weight
    in the average, and `blocks` the number of blocks of its lease that it has trained on. `claim`
    is the digest of its claim in a run with claims (`Rules.claims`), else None.
    """

    peer: PeerId
    tokens: int
    blocks: int
    claim: Digest | None = None

    def __post_init__(self) -> None:
        check(self.tokens > 0 and self.blocks > 0, "a participant must have tokens and blocks")
        check(self.claim is None or is_digest(self.claim), "a claim's name must be a digest")

    def plain(self) -> list[object]:
        """Return the participant as a list. Without a claim, it is the same as in versions that did
        not know claims, so that old entries keep their digests.
        """
        old: list[object] = [self.peer, self.tokens, self.blocks]
        return old if self.claim is None else [*old, self.claim]


TERMS_MAX = 64
"""Maximum number of amendments of a run. The organiser makes each by hand, so 64 is enough."""

DELEGATES_MAX = 16
"""Maximum number of peers to which an organiser delegates a vote at the same time. The list is in a
roster and, for each amendment, in the state: 64 amendments with 16 peers each take 60 kB.
"""

LEASE_BLOCKS_MAX = 1 << 20
"""Maximum number of data blocks in one lease. A larger lease is a mistake."""


@dataclass(frozen=True, slots=True)
class Terms:
    """An amendment, identified by its number and digest. It takes effect in outer step `step`.
    `blocks` is the size of a lease from then on, or None if the amendment does not change it.
    `voters` are the delegates from then on, sorted: peers that may vote in addition to the founders
    of an open run. It is None if the amendment does not change them, and empty if it revokes all.
    If `stops` is true, the run ends before outer step `step`.
    """

    number: int
    step: int
    digest: Digest
    blocks: int | None = None
    voters: tuple[PeerId, ...] | None = None
    stops: bool = False

    def __post_init__(self) -> None:
        check(self.number > 0 and self.step > 0, "an amendment's number and step start at 1")
        check(is_digest(self.digest), "an amendment's name must be a digest")
        fits = self.blocks is None or 0 < self.blocks <= LEASE_BLOCKS_MAX
        check(fits, f"a lease must have 1 to {LEASE_BLOCKS_MAX} blocks")
        named = list(self.voters or ())
        check(
            len(named) <= DELEGATES_MAX, f"at most {DELEGATES_MAX} peers can have delegated votes"
        )
        check(named == sorted(set(named)), "delegates must be sorted, and each must be named once")

    def plain(self) -> list[object]:
        """Return the amendment as a list. Without delegates, and without the end of the run, it is
        the same as in versions that did not know them, so that old entries keep their digests.
        """
        old: list[object] = [self.number, self.step, self.digest, self.blocks]
        delegates = None if self.voters is None else list(self.voters)
        if self.stops:
            return [*old, delegates, True]
        return old if delegates is None else [*old, delegates]


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of the run, and the participants of the reduce that it opens, if any.

    `voters` are in rank order. `participants` are in the order in which they average. A roster
    without participants only changes the membership; any other roster opens the reduce of outer
    step `step` with number `attempt`. `terms` is an amendment for a later step that is agreed with
    the roster (see the module `terms`). `auditors` are those from now on, sorted; None if they stay
    the same (SPEC.md, A1). `peers` are the participants' ids.
    """

    step: int
    attempt: int
    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...]
    participants: tuple[Participant, ...] = ()
    schedule: Schedule = "ring"
    terms: Terms | None = None
    auditors: tuple[PeerId, ...] | None = None
    peers: tuple[PeerId, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self.step >= 0 and self.attempt >= 0, "steps and attempts start at 0")
        members = _distinct_members(self.voters, self.learners)
        object.__setattr__(self, "peers", tuple(each.peer for each in self.participants))
        averaging = set(self.peers)
        check(len(averaging) == len(self.participants), "a participant is named twice")
        check(averaging <= members, "participants must be members")
        check(self.schedule in SCHEDULES, f"the schedule must be one of {SCHEDULES}")
        check(bool(averaging) or self.schedule == "ring", "without a reduce, the schedule is ring")
        named = list(self.auditors or ())
        check(named == sorted(set(named)), "auditors must be sorted, and each must be named once")

    @property
    def members(self) -> tuple[PeerId, ...]:
        return self.voters + self.learners

    def plain(self) -> dict[str, object]:
        """Return the roster as a map. If it does not name auditors, the map is the same as in
        versions that did not know them.
        """
        participants = [each.plain() for each in self.participants]
        audited = {} if self.auditors is None else {"auditors": list(self.auditors)}
        return {
            "kind": "roster",
            "step": self.step,
            "attempt": self.attempt,
            "voters": list(self.voters),
            "learners": list(self.learners),
            "participants": participants,
            "schedule": self.schedule,
            "terms": None if self.terms is None else self.terms.plain(),
            **audited,
        }


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """The digest of a snapshot of θ and m, taken before outer step `step`."""

    step: int
    digest: Digest

    def __post_init__(self) -> None:
        check(self.step >= 0 and is_digest(self.digest), "a snapshot needs a step and a digest")

    def plain(self) -> list[object]:
        return [self.step, self.digest]


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of outer step `step` with `update`, the result of the reduce with number `attempt`.

    If it names a snapshot, `state` is the digest of the ledger's state that the Commit applies to.
    A node that trusts the Commit can then continue from that state without the earlier entries.
    """

    step: int
    attempt: int
    update: Digest
    snapshot: SnapshotRef | None = None
    state: Digest | None = None

    def __post_init__(self) -> None:
        check(self.step >= 0 and self.attempt >= 0, "steps and attempts start at 0")
        check(is_digest(self.update), "an update's name must be a digest")
        together = (self.snapshot is None) is (self.state is None)
        check(together, "a snapshot and a state must be named together")
        check(self.state is None or is_digest(self.state), "a state's name must be a digest")

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
    """The end of outer step `step` without an update, because its attempts at a reduce failed."""

    step: int

    def __post_init__(self) -> None:
        check(self.step >= 0, "steps start at 0")

    def plain(self) -> dict[str, object]:
        return {"kind": "skip", "step": self.step}


@dataclass(frozen=True, slots=True)
class Branch:
    """A decision of these members to continue without the lost quorum. The entry begins a new line.

    The signatures of all its `voters` certify it, instead of the votes of a quorum.
    """

    step: int
    voters: tuple[PeerId, ...]
    learners: tuple[PeerId, ...] = ()

    def __post_init__(self) -> None:
        check(self.step >= 0, "steps start at 0")
        _distinct_members(self.voters, self.learners)

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
    """The last entry of a branch. Its members move to the chain that has `entry` at `height`."""

    step: int
    height: int
    entry: Digest

    def __post_init__(self) -> None:
        check(self.step >= 0 and self.height > 0, "steps start at 0, heights at 1")
        check(is_digest(self.entry), "an entry's name must be a digest")

    def plain(self) -> dict[str, object]:
        return {"kind": "heal", "step": self.step, "height": self.height, "entry": self.entry}


Value = Roster | Commit | Skip | Branch | Heal | Verdict


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at its place in the chain. `digest` covers the entry and all entries before it."""

    height: int
    parent: Digest
    value: Value
    digest: Digest = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self.height > 0 and is_digest(self.parent), "an entry needs a height and a parent")
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
        check(len(self.votes) <= MEMBERS_MAX, "a certificate has too many votes")
        names = [voter for voter, _ in self.votes]
        check(names == sorted(set(names)), "votes must be sorted, one per voter")

    @property
    def voters(self) -> frozenset[PeerId]:
        return frozenset(voter for voter, _ in self.votes)

    def plain(self) -> dict[str, object]:
        votes = [[voter, encode_signature(signature)] for voter, signature in self.votes]
        return {"height": self.height, "round": self.round, "entry": self.entry, "votes": votes}


@dataclass(frozen=True, slots=True)
class Certified:
    """An entry with the proof that it was decided. Nodes store, send and replay this form."""

    entry: Entry
    certificate: Certificate

    def plain(self) -> dict[str, object]:
        return {"entry": self.entry.plain(), "certificate": self.certificate.plain()}


def vote_message(line: LineId, height: int, round: int, entry: Digest) -> bytes:
    """Return the bytes that a vote signs. They begin with the kind of statement (as for promises
    and branches), so that one kind of signature cannot be passed off as another.
    """
    return _spelled(b"p2ptrain-vote/1\n", line, height, round, entry)


def promise_message(
    line: LineId, height: int, round: int, accepted_round: int | None, accepted: Digest | None
) -> bytes:
    """Return the bytes that a promise signs: its round, and what the voter accepted last."""
    parts = (line, height, round, accepted_round, accepted)
    return _spelled(b"p2ptrain-promise/1\n", *parts)


@lru_cache(maxsize=256, typed=True)
def _spelled(domain: bytes, *parts: str | int | None) -> bytes:
    """Encode a statement. The result is cached: all votes of a certificate sign the same bytes."""
    return domain + canonical(parts)


def branch_message(line: LineId, entry: Entry) -> bytes:
    """Return the bytes that the voters of a branch sign."""
    return b"p2ptrain-branch/1\n" + canonical([line, entry.height, entry.parent, entry.digest])


def _distinct_members(voters: tuple[PeerId, ...], learners: tuple[PeerId, ...]) -> set[PeerId]:
    members = set(voters + learners)
    check(len(voters) > 0, "there must be at least one voter")
    check(len(members) == len(voters) + len(learners), "a member is named twice")
    check(len(members) <= MEMBERS_MAX, f"there can be at most {MEMBERS_MAX} members")
    return members


def check(holds: bool, rule: str) -> None:
    """Raise ValueError(rule) unless `holds`."""
    if not holds:
        raise ValueError(rule)
