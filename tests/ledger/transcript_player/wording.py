"""Describe the effects and messages of ledgers in words, for readable transcripts.

Digests are replaced by names. A story chooses some of the names (`u1`). `e2` is the first entry
seen at height 2, and `e2'` is the second entry at that height.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.values import Branch, Commit, Entry, Heal, Roster, Skip, Value
from p2ptrain.ledger.messages.effects import (
    Accuse,
    Announce,
    AskEntries,
    Decided,
    Effect,
    FetchUpdate,
    Note,
    Persist,
    Rejoin,
    Send,
    VoteWithheld,
    VotingStopped,
)
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accusation,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Promise,
    Propose,
    ProposeBranch,
    Pruned,
    RefuseBranch,
    Refused,
    SignBranch,
)
from p2ptrain.ledger.paxos.acceptor import restored_acceptors

_HEX = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8}\b")


@dataclass(slots=True)
class Words:
    """Remembers the names of digests."""

    names: dict[str, str] = field(default_factory=dict)
    heights: dict[int, int] = field(default_factory=dict)

    def call(self, digest: Digest, name: str) -> Digest:
        self.names[digest] = name
        return digest

    def name(self, digest: str) -> str:
        known = (name for full, name in self.names.items() if full.startswith(digest))
        return next(known, digest[:8])

    def text(self, text: str) -> str:
        """Replace the digests in a text by names, even if only their first eight digits appear."""
        return _HEX.sub(lambda found: self.name(found.group()), text)

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def entry(self, entry: Entry) -> str:
        """Return an entry's name. At its first mention, add its value."""
        if entry.digest in self.names:
            return self.names[entry.digest]
        others = self.heights.get(entry.height, 0)
        self.heights[entry.height] = others + 1
        name = f"e{entry.height}" + "'" * others
        self.call(entry.digest, name)
        return f"{name} = {self.value(entry.value)}"

    def value(self, value: Value) -> str:
        match value:
            case Roster():
                return _roster(value)
            case Commit(step, attempt, update, snapshot):
                text = f"commit {step}.{attempt} {self.name(update)}"
                if snapshot is not None:
                    text += f", snapshot {snapshot.step}={self.name(snapshot.digest)}"
                return text
            case Skip(step):
                return f"skip {step}"
            case Branch(step, voters, learners):
                more = f" learners {_names(learners)}" if learners else ""
                return f"branch {step} voters {_names(voters)}{more}"
            case Heal(step, height, entry):
                return f"heal {step} towards {self.name(entry)} at {height}"
            case Verdict(step):
                return f"verdict {step} about {_names(value.peers)}"

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def message(self, message: object) -> str:
        """Describe a message; if its kind does not occur in the stories, return only the name."""
        match message:
            case Prepare(height, round):
                return f"prepare {height}/{round}"
            case Promise(height, round, accepted):
                had = f"voted {accepted.round} {self.entry(accepted.entry)}" if accepted else "free"
                return f"promise {height}/{round}, {had}"
            case Propose(round, entry, _, promises):
                shown = f", promised by {_names(p.voter for p in promises)}" if promises else ""
                return f"propose {entry.height}/{round} {self.entry(entry)}{shown}"
            case Accept(vote):
                return f"accept {vote.height}/{vote.round} {self.name(vote.entry)}"
            case Refused(height, round, promised, reason):
                return f"refuse {height}/{round}, promised {promised}: {self.text(reason)}"
            case Outcome(certified):
                voters = _names(sorted(certified.certificate.voters))
                return f"outcome {self.entry(certified.entry)} by {voters}"
            case EntriesRequest(from_height):
                return f"request entries from {from_height}"
            case ProposeBranch(entry):
                return f"propose {self.entry(entry)}"
            case SignBranch(_, entry):
                return f"sign {self.name(entry)}"
            case RefuseBranch(height, reason):
                return f"refuse a branch at {height}: {self.text(reason)}"
            case Entries(height, page):
                shown = _names(self.name(it.entry.digest) for it in page) or "none"
                return f"entries {shown} of {height}"
            case Pruned(height, up_to):
                return f"entries pruned up to {up_to} of {height}"
            case Accusation(evidence):
                return f"accusation of {evidence.peer}: {self.text(evidence.words)}"
            case _:
                return type(message).__name__.lower()

    # ── effects ──────────────────────────────────────────────────────────────────────────────────

    def effects(self, me: PeerId, effects: Iterable[Effect]) -> list[str]:
        """Return one line for each effect, but one for the same message to several peers."""
        lines: list[str] = []
        spoken: Message | None = None
        for effect in effects:
            if isinstance(effect, Send) and effect.message == spoken:
                head, colon, rest = lines[-1].partition(": ")
                lines[-1] = f"{head} {effect.peer}{colon}{rest}"
                continue
            spoken = effect.message if isinstance(effect, Send) else None
            lines.append(self.effect(me, effect))
        return lines

    def effect(self, me: PeerId, effect: object) -> str:
        match effect:
            case Persist(record):
                return f"{me} writes {self.record(record)}"
            case Send(peer, message):
                return f"{me} -> {peer}: {self.message(message)}"
            case Announce(message):
                return f"{me} -> all: {self.message(message)}"
            case Decided(certified):
                return f"{me} appends {self.entry(certified.entry)}"
            case Rejoin(height, chain):
                new = _names(self.name(each.entry.digest) for each in chain)
                return f"{me} starts anew after height {height}, with {new}"
            case FetchUpdate(update, holders):
                return f"{me} fetches {self.name(update)} from {_names(holders) or 'anybody'}"
            case AskEntries(peer, from_height):
                return f"{me} asks {peer} for entries from {from_height}"
            case Accuse(evidence):
                return f"{me} accuses {evidence.peer}"
            case VoteWithheld(height, what):
                return f"{me} does not vote at height {height}: {self.text(what)}"
            case VotingStopped(what):
                return f"{me} stops voting: {self.text(what)}"
            case Note(text):
                return f"{me} notes: {self.text(text)}"
            case _:
                return f"{me}: {type(effect).__name__}"

    def record(self, record: bytes) -> str:
        """Describe the promise or vote in a record of the voter's log."""
        (acceptor,) = restored_acceptors([record], decided={}).values()
        accepted = acceptor.accepted
        if accepted is None:
            return f"promise {acceptor.height}/{acceptor.promised}"
        return f"vote {acceptor.height}/{accepted.round} {self.entry(accepted.entry)}"


def _names(names: Iterable[str]) -> str:
    return " ".join(names)


def _roster(roster: Roster) -> str:
    learners = f" learners {_names(roster.learners)}" if roster.learners else ""
    averaging = _names(f"{each.peer}:{each.tokens}" for each in roster.participants)
    by = "" if roster.schedule == "ring" else f" by {roster.schedule}"
    opens = f" averaging{by} {averaging}" if averaging else ""
    amends = f" amended by {roster.terms.number}" if roster.terms else ""
    who = f"voters {_names(roster.voters)}{learners}"
    return f"roster {roster.step}.{roster.attempt} {who}{opens}{amends}"
