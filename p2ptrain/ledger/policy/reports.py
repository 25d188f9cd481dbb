"""The reports that this node has received from peers. They decide what it proposes and when. Nodes
do not agree on them, and they are not stored on disk.

Only the newest report of a peer counts, so repeated and late ones have no effect. Tables are
bounded, no matter what is gossiped (`chain/bounded_table.py`). This module only stores reports;
`policy` and `accept` decide what follows from them.
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
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    AnyReport,
    AuditOffer,
    FindingMade,
    Joining,
    KnownAmendments,
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
from p2ptrain.ledger.policy.blame import FailureMemory
from p2ptrain.ledger.policy.grace import LAGS_KEPT, MISSED_MAX, Credit
from p2ptrain.ledger.policy.known_findings import KnownFindings
from p2ptrain.ledger.policy.lost_time import LostTime

HELD_MAX = 256
"""Maximum number of updates remembered as held. No reduce has as many."""

SNAPSHOTS_MAX = 8
"""Maximum number of snapshots remembered for one peer. More than one is needed: while some voters
are slow to write a snapshot, others already report the snapshots of later steps.
"""

SETTLE_S = 3.0
"""Seconds for which a proposer does not drop a flapping member that went down. Other voters notice
up to one heartbeat later that it went down or came back. A voter that still considers the member up
would refuse the roster, which costs everybody a round.
"""

FLAPS_S = 120.0
"""A member that goes down twice within this many seconds is flapping. A member that crashes twice
in that time is dropped SETTLE_S later than necessary, but that is rare.
"""

Report = TypeVar("Report", Ready, ReduceDone, ReduceFailed)


@dataclass(slots=True)
class Reports:
    """The reports of all peers, and the times derived from them.

    - `me`: this node. Its own reports are stored like those of other peers.
    - `position`: the current outer step and attempt. Reports about earlier ones no longer matter.
    - `falls`: the last two times at which each member went down.
    - `allowed`: the peers that may be members; None if any peer may.
    - `accused`: the voters against which there is evidence (two contradictory signed statements).
      They stay accused for ever.
    - `snapshots`: for each peer, the snapshots that it wrote, by outer step.
    - `gathering_since`: when this node first looked at the current outer step.
    - `enough_since`: when a quorum and enough contributors became ready for this step.
    - `quorum_at`: the newest outer step for which a quorum was ready, and when it was first ready.
    - `lags`: the seconds between the quorum and each member that became ready later, for this step
      and past ones.
    - `grace_s`: how long a ready quorum waits for the others in this step, computed from `lags`.
    - `credit`: how long a ready quorum waits for members that were missing recently.
    - `reducing_since`: when this node first looked at the current reduce.
    - `failed_since`: when this node learned of the first failure of the current reduce.
    - `done_since`: when this node learned of a result of the current reduce.
    - `skips`: the number of consecutive skipped outer steps before this one that this process has
      seen.
    - `blame`: the memory of failed attempts and absences.
    - `lost_time`: how long outer steps and failed attempts take.
    - `outranked_by`: the first entry that differs from ours in a verified chain that outranks ours.
    - `terms`: the amendments on this node's disk.
    - `members`: the members, and in an open run all founders and delegates. There is always room
      for their reports.
    - `founders`: the founders and delegates in a run in which only they vote, else None.
    - `returned`: founders and delegates that were down, are up again, and have not been ready since
      then. A voter of an open run keeps its place while it is down, but the others do not wait for
      it while it fetches what it missed.
    - `offers`: the number of processor cores that each peer offers for audits.
    - `findings`: the findings of auditors that count now.
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
    blame: FailureMemory = field(default_factory=FailureMemory)
    lost_time: LostTime = field(default_factory=LostTime)
    outranked_by: Entry | None = None
    terms: frozenset[Terms] = frozenset()
    members: frozenset[PeerId] = frozenset()
    founders: Founders | None = None
    returned: set[PeerId] = field(default_factory=set)
    offers: dict[PeerId, int] = field(default_factory=dict)
    findings: KnownFindings = field(default_factory=KnownFindings)

    @property
    def own_snapshots(self) -> dict[int, Digest]:
        return self.snapshots.get(self.me, {})

    def know(self, rules: Rules, state: LedgerState) -> frozenset[PeerId]:
        """Reserve room for the members, and for founders and delegates that are away. Call this
        before all other methods, and after each entry. Return the members.
        """
        self.members = members = frozenset(state.since)
        self.founders = founders_of(rules, state)
        if self.founders is not None:
            self.members |= self.founders.names | self.founders.delegates
        self.falls = {peer: times for peer, times in self.falls.items() if peer in self.members}
        if rules.audits:
            self.findings.follow(state)
        return members

    def allows(self, peer: PeerId) -> bool:
        return self.allowed is None or peer in self.allowed

    def stays(self, peer: PeerId) -> bool:
        """Return whether `peer` may stay a member: it is allowed, not leaving and not accused."""
        return peer not in self.leaving and peer not in self.accused and self.allows(peer)

    def is_punctual(self, peer: PeerId) -> bool:
        """Return whether `peer` took part in most recent attempts and is worth waiting for."""
        return self.blame.missed.get(peer, 0.0) < MISSED_MAX

    def long_down(self, now: float) -> set[PeerId]:
        """Return the peers that are down, except flapping ones that went down in the last 3 s."""
        return {peer for peer in self.down if not self._has_just_flapped(peer, now)}

    def down_at_least(self, seconds: float, now: float) -> set[PeerId]:
        """Return the peers that this node has considered down for at least `seconds`."""
        return {peer for peer in self.down if now - self.falls.get(peer, (now, now))[1] >= seconds}

    def _has_just_flapped(self, peer: PeerId, now: float) -> bool:
        earlier, last = self.falls.get(peer, (-math.inf, -math.inf))
        return last - earlier < FLAPS_S and now < last + SETTLE_S

    def note(self, event: AnyReport) -> bool:
        """Store a report. Return False if it is outdated or says nothing new."""
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
            case AllowedPeers(peers):
                changed, self.allowed = self.allowed != peers, peers
                return changed
            case KnownAmendments(terms):
                changed, self.terms = self.terms != terms, terms
                return changed
            case FindingMade(finding):
                return self.findings.note(finding)
            case AuditOffer(peer, cores) if make_room(self.offers, peer, self.members):
                changed, self.offers[peer] = self.offers.get(peer) != cores, cores
                return changed
            case _:
                return self._note_presence(event)

    def note_time(self, event: AnyReport, now: float) -> None:
        """Record when a member became ready or went down. Call this before `note`."""
        match event:
            case Ready(peer) if peer in self.members:
                self.note_lag(event, now)
                self.lost_time.watched |= event.step == self.position[0]
            case PeerDown(peer) if peer in self.members and peer not in self.down:
                self.falls[peer] = (self.falls.get(peer, (-math.inf, -math.inf))[1], now)

    def note_lag(self, report: Ready, now: float) -> None:
        """Record how long after the quorum a member became ready, if this is its first report for
        the step. Call this before `note`.

        Members that were absent recently do not count: a member that is never ready in time would
        lengthen the grace for everybody.
        """
        if self.quorum_at is None or not self.quorum_at[0] == report.step >= self.position[0]:
            return
        known = self.ready.get(report.peer)
        if (known is None or known.step < report.step) and self.is_punctual(report.peer):
            self.lags.append(max(0.0, now - self.quorum_at[1]))

    def is_older_than(self, report: Ready) -> bool:
        """Return whether `report` would replace an older one of the same peer and outer step."""
        known = self.ready.get(report.peer)
        return known is not None and known.step == report.step and known.serial < report.serial

    def forget_reports(self, peer: PeerId) -> None:
        """Forget the reports of `peer`, because they are about a chain that it has left."""
        for reports in (self.ready, self.done, self.failed, self.snapshots):
            reports.pop(peer, None)

    def _is_newest(self, reports: dict[PeerId, Report], report: Report) -> bool:
        """Store `report` if it is newer than the last one of its peer. Return whether it was."""
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
        """Store a failure. A peer that names itself as a suspect has lost its work, so it no longer
        counts as ready until it sends Ready again.
        """
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

    def _note_presence(self, event: AnyReport) -> bool:
        match event:
            case PeerDown(peer) if peer != self.me and peer not in self.down:
                self.joining.pop(peer, None)
                self.down.add(peer)
            case PeerUp(peer) if peer in self.down:
                self.down.discard(peer)
                if self.founders is not None and self.founders.may_vote(peer):
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
        """Record that `peer` asks to join. If too many peers ask, forget the oldest request of a
        peer that is not a founder; that peer can ask again.
        """
        self.joining[peer] = None
        if len(self.joining) > PEERS_MAX:
            del self.joining[next(each for each in self.joining if each not in self.members)]

    def entered(self, before: LedgerState, state: LedgerState) -> None:
        """Record that an entry was appended: forget reports about earlier steps and attempts."""
        if (before.step, before.phase) != (state.step, state.phase):
            self.enough_since = self.gathering_since = None
        if (before.step, before.attempt) != (state.step, state.attempt):
            self.held = {}  # These updates may exceed the bounds of the next reduce.
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

    def remember_attempt(self, before: LedgerState, state: LedgerState, now: float) -> None:
        """Record whether an attempt ended or began. Call this before `entered`."""
        if before.roster is not None and state.roster != before.roster:
            peers = before.roster.peers
            if state.tokens > before.tokens:
                self.blame.committed(peers, _included(before))
            else:
                lost_steps = self.lost_time.failed(now)
                self.blame.failed(peers, self.accusations(before.roster), lost_steps)
        if before.step != state.step:
            self.lost_time.stepped(now)
            if state.tokens == before.tokens:
                self.blame.skipped()
        if state.roster is not None and state.roster != before.roster:
            self.lost_time.opened(now)
            ready = (peer for peer, it in self.ready.items() if it.step == state.step)
            here = (peer for peer in ready if peer not in self.down and self.stays(peer))
            self.blame.opened(state.roster.peers, _included(state), here)

    def accusations(self, roster: Roster) -> dict[PeerId, tuple[PeerId, ...]]:
        """Return the suspects named by each participant that abandoned the attempt of `roster`."""
        attempt = (roster.step, roster.attempt)
        failed = (self.failed.get(peer) for peer in roster.peers)
        return {it.peer: it.suspects for it in failed if it and _position(it) == attempt}


def _included(state: LedgerState) -> list[PeerId]:
    """Return the members that are not excluded. The absence of the others does not count (A5)."""
    return [member for member in state.members if member not in state.excluded]


def _position(report: Ready | ReduceDone | ReduceFailed) -> tuple[int, int]:
    """Return the place of a report in the order of its kind. Reports that a peer is ready for one
    outer step are in the order of its claims.
    """
    return (report.step, report.serial if isinstance(report, Ready) else report.attempt)


Key = TypeVar("Key", int, Digest, PeerId)
ValueT = TypeVar("ValueT")


def _remember(memory: dict[Key, ValueT], key: Key, value: ValueT, count_max: int) -> bool:
    """Store `value`, and drop the oldest if there are too many. Return whether it is new."""
    if key in memory and memory[key] == value:
        return False
    memory[key] = value
    if len(memory) > count_max:
        del memory[next(iter(memory))]
    return True
