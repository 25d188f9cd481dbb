"""What this node has heard, for deciding what to propose and when. None of it is agreed or durable.

Only the newest report of a peer counts, so repeated and late ones change nothing, and the size is
bounded by the number of peers, whatever is gossiped (`room`). Knows no rules: `propose` and
`accept` judge.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeVar

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX, make_room
from p2ptrain.ledger.chain.founders import Founders, founders_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Entry, Roster, Terms
from p2ptrain.ledger.messages.events import (
    Allowed,
    Amendable,
    Event,
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    Staying,
    UpdateHeld,
)
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.policy.blame import Memory
from p2ptrain.ledger.policy.grace import LAGS_KEPT, MISSED_MAX, Credit

HELD_MAX = 256
"""Only updates of the reduce under way are asked about; so many are more than a run of attempts."""

SNAPSHOTS_MAX = 8
"""Of one peer: who is slow to write is long heard about what others have left behind."""

SETTLE_S = 3.0
"""A proposer does not drop a flapping member that fell so recently. Other voters hear of the fall
up to one heartbeat later, or of the return, and a voter for which the member is up does not vote
for the roster, which costs everybody a round."""

FLAPS_S = 120.0
"""A member that falls twice within this time flaps. One that crashes, and crashes again after its
restart, is rare enough to be dropped a moment later."""

Report = TypeVar("Report", Ready, ReduceDone, ReduceFailed)


@dataclass(slots=True)
class View:
    """`falls`: when each member went down, the time before the last one and the last one.
    `gathering_since`: when this node first looked at the outer step under way.
    `enough_since`: when a quorum and enough contributors were first seen ready for this step.
    `failed_since`, `done_since`: when the first failure, the first result of the reduce under way
    became known. `quorum_at`: an outer step, and when a quorum was first ready for it; `lags`: how
    long after that further members were, in this step and past ones; `grace_s`: what follows from
    them for this step. `accused`: the voters against whom there is evidence, for ever.
    `outranked_by`: the first entry that a verified chain, which outranks ours, has otherwise.
    `skips`: how many outer steps before this one were skipped in a row since this process began.
    `terms`: the amendments on this node's disk. `snapshots`: by outer step, what each peer wrote.
    `position`: the outer step and attempt under way; reports about earlier ones cannot matter any
    more. `members`: whose reports are kept whoever else reports. `blame`: what attempts of past
    steps and of this one say of their participants. `reducing_since`: when this node first looked
    at the reduce under way. `founders`: of a run in which they alone vote. `returned`: those of
    them that were down and have not been ready since. A founder keeps its place while it is down;
    nobody waits for it while it fetches what it missed.
    """

    me: PeerId
    position: tuple[int, int] = (0, 0)
    down: set[PeerId] = field(default_factory=set)
    falls: dict[PeerId, tuple[float, float]] = field(default_factory=dict)
    leaving: set[PeerId] = field(default_factory=set)
    joining: dict[PeerId, None] = field(default_factory=dict)
    allowed: Container[PeerId] | None = None
    accused: dict[PeerId, Evidence] = field(default_factory=dict)
    ready: dict[PeerId, Ready] = field(default_factory=dict)
    done: dict[PeerId, ReduceDone] = field(default_factory=dict)
    failed: dict[PeerId, ReduceFailed] = field(default_factory=dict)
    held: dict[Digest, None] = field(default_factory=dict)
    snapshots: dict[PeerId, dict[int, Digest]] = field(default_factory=dict)
    gathering_since: float | None = None
    enough_since: float | None = None
    grace_s: float | None = None
    credit: Credit = field(default_factory=Credit)
    quorum_at: tuple[int, float] | None = None
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=LAGS_KEPT))
    failed_since: float | None = None
    done_since: float | None = None
    reducing_since: float | None = None
    skips: int = 0
    blame: Memory = field(default_factory=Memory)
    outranked_by: Entry | None = None
    terms: frozenset[Terms] = frozenset()
    members: frozenset[PeerId] = frozenset()
    founders: Founders | None = None
    returned: set[PeerId] = field(default_factory=set)

    @classmethod
    def of(cls, rules: Rules, me: PeerId) -> View:
        """The view of a node that has heard nothing yet."""
        return cls(me, founders=founders_of(rules))

    @property
    def own_snapshots(self) -> dict[int, Digest]:
        return self.snapshots.get(self.me, {})

    def know(self, members: frozenset[PeerId]) -> frozenset[PeerId]:
        """Keep room for the members of the roster, which are returned, and for founders that are
        away.
        """
        self.members = members if self.founders is None else members | self.founders.names
        self.falls = {peer: times for peer, times in self.falls.items() if peer in self.members}
        return members

    def allows(self, peer: PeerId) -> bool:
        return self.allowed is None or peer in self.allowed

    def stays(self, peer: PeerId) -> bool:
        """Whether nothing but a fault would make `peer` leave."""
        return peer not in self.leaving and peer not in self.accused and self.allows(peer)

    def is_punctual(self, peer: PeerId) -> bool:
        """Whether `peer` took part in most recent attempts, so that it is worth waiting for."""
        return self.blame.missed.get(peer, 0.0) < MISSED_MAX

    def note_down(self, event: PeerDown, now: float) -> None:
        """Note when a member goes down. Call before `note`."""
        if event.peer not in self.down:
            self.falls[event.peer] = (self.falls.get(event.peer, (-math.inf, -math.inf))[1], now)

    def long_down(self, now: float) -> set[PeerId]:
        """Return the peers that are down, without flapping ones that fell a moment ago."""
        return {peer for peer in self.down if not self._has_just_flapped(peer, now)}

    def _has_just_flapped(self, peer: PeerId, now: float) -> bool:
        earlier, last = self.falls.get(peer, (-math.inf, -math.inf))
        return last - earlier < FLAPS_S and now < last + SETTLE_S

    def note(self, event: Event) -> bool:
        """Take a report in. False if it told nothing new."""
        match event:
            case Ready():
                return event.step >= self.position[0] and self._note_ready(event)
            case ReduceDone():
                return _position(event) >= self.position and self._is_newest(self.done, event)
            case ReduceFailed():
                return _position(event) >= self.position and self._note_failure(event)
            case UpdateHeld(update, reduce):
                if reduce is not None and reduce < self.position:
                    return False
                return _remember(self.held, update, None, HELD_MAX)
            case SnapshotTaken():
                return self._note_snapshot(event)
            case Allowed(peers):
                changed, self.allowed = self.allowed != peers, peers
                return changed
            case Amendable(terms):
                changed, self.terms = self.terms != terms, terms
                return changed
            case _:
                return self._note_presence(event)

    def note_time(self, event: Event, now: float) -> None:
        """Note when a member was ready, or went down. Call before `note`."""
        match event:
            case Ready(peer) if peer in self.members:
                self.note_lag(event, now)
            case PeerDown(peer) if peer in self.members:
                self.note_down(event, now)

    def note_lag(self, report: Ready, now: float) -> None:
        """A member's first report for a step: if a quorum was ready before, it came so much later.

        Members that were missing lately do not count: one that is never ready in time would
        lengthen the grace for everybody. Call before `note`.
        """
        if self.quorum_at is None or not self.quorum_at[0] == report.step >= self.position[0]:
            return
        known = self.ready.get(report.peer)
        if (known is None or known.step < report.step) and self.is_punctual(report.peer):
            self.lags.append(max(0.0, now - self.quorum_at[1]))

    def forget_reports(self, peer: PeerId) -> None:
        """What `peer` said is about another chain than the one that it is on now."""
        for reports in (self.ready, self.done, self.failed, self.snapshots):
            reports.pop(peer, None)

    def _is_newest(self, reports: dict[PeerId, Report], report: Report) -> bool:
        """Whether it says more than what is known of its peer; then it is known."""
        known = reports.get(report.peer)
        if known is None:
            news = make_room(reports, report.peer, self.members)
        else:
            news = known != report and _position(report) >= _position(known)
        if news:
            reports[report.peer] = report
        return news

    def _note_ready(self, report: Ready) -> bool:
        news = self._is_newest(self.ready, report)
        self.returned.discard(report.peer)
        return news

    def _note_failure(self, report: ReduceFailed) -> bool:
        """Who names itself takes back that it is ready; it may say later that it is again."""
        news = self._is_newest(self.failed, report)
        if news and report.peer in report.suspects:
            self.ready.pop(report.peer, None)
        return news

    def _note_snapshot(self, report: SnapshotTaken) -> bool:
        peer = report.peer
        if peer != self.me and not make_room(self.snapshots, peer, self.members):
            return False
        taken = self.snapshots.setdefault(peer, {})
        return _remember(taken, report.step, report.digest, SNAPSHOTS_MAX)

    def _note_presence(self, event: Event) -> bool:
        match event:
            case PeerDown(peer) if peer != self.me and peer not in self.down:
                self.joining.pop(peer, None)
                self.down.add(peer)
            case PeerUp(peer) if peer in self.down:
                self.down.discard(peer)
                if self.founders is not None and peer in self.founders.names:
                    self.returned.add(peer)
            case Joining(peer) if peer not in self.joining:
                self._note_joining(peer)
                self.leaving.discard(peer)
            case Leaving(peer) if peer not in self.leaving:
                if len(self.leaving) >= PEERS_MAX:
                    self.leaving &= self.members
                self.joining.pop(peer, None)
                self.leaving.add(peer)
            case Staying(peer) if peer in self.leaving:
                self.leaving.discard(peer)
            case _:
                return False
        return True

    def _note_joining(self, peer: PeerId) -> None:
        """Where too many ask, the first of them has to ask again; but no founder has to."""
        self.joining[peer] = None
        if len(self.joining) > PEERS_MAX:
            del self.joining[next(each for each in self.joining if each not in self.members)]

    def entered(self, before: LedgerState, state: LedgerState) -> None:
        """A new entry holds: forget what was about earlier steps, attempts and memberships."""
        if (before.step, before.phase) != (state.step, state.phase):
            self.enough_since = self.gathering_since = None
        if (before.step, before.attempt) != (state.step, state.attempt):
            self.held = {}  # Of another reduce. Its updates are held to other bounds.
        if before.step != state.step:
            self.skips = 0 if state.tokens > before.tokens else self.skips + 1
        self.failed_since = self.done_since = self.reducing_since = None
        attempt = state.attempt if state.roster is None else state.roster.attempt
        self.ready = {peer: it for peer, it in self.ready.items() if it.step >= state.step}
        self.position = now = (state.step, attempt)
        self.done = {peer: it for peer, it in self.done.items() if _position(it) >= now}
        self.failed = {peer: it for peer, it in self.failed.items() if _position(it) >= now}
        self.joining = {peer: None for peer in self.joining if not state.is_member(peer)}
        self.leaving = {peer for peer in self.leaving if state.is_member(peer)}

    def remember_attempt(self, before: LedgerState, state: LedgerState) -> None:
        """An attempt has ended, or one has begun. Call before `entered` forgets its reports."""
        if before.roster is not None and state.roster != before.roster:
            peers = before.roster.peers
            if state.tokens > before.tokens:
                self.blame.committed(peers, before.members)
            else:
                self.blame.failed(peers, self.accusations(before.roster))
        if before.step != state.step and state.tokens == before.tokens:
            self.blame.skipped()
        if state.roster is not None and state.roster != before.roster:
            ready = (peer for peer, it in self.ready.items() if it.step == state.step)
            here = (peer for peer in ready if peer not in self.down and self.stays(peer))
            self.blame.opened(state.roster.peers, state.members, here)

    def accusations(self, roster: Roster) -> dict[PeerId, tuple[PeerId, ...]]:
        """Whom those that gave up the attempt of `roster` accuse, by reporter."""
        attempt = (roster.step, roster.attempt)
        failed = (self.failed.get(peer) for peer in roster.peers)
        return {it.peer: it.suspects for it in failed if it and _position(it) == attempt}


def _position(report: Ready | ReduceDone | ReduceFailed) -> tuple[int, int]:
    return (report.step, 0 if isinstance(report, Ready) else report.attempt)


Key = TypeVar("Key", int, Digest, PeerId)
Kept = TypeVar("Kept")


def _remember(memory: dict[Key, Kept], key: Key, value: Kept, count_max: int) -> bool:
    if key in memory and memory[key] == value:
        return False
    memory[key] = value
    if len(memory) > count_max:
        del memory[next(iter(memory))]
    return True
