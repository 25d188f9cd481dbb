"""A simulated node: the real Ledger and Detector, with a disk that survives its process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import SCHEDULES, Participant, Roster, Schedule, Terms
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.failure_detector import Colour, Detector
from p2ptrain.ledger.messages import effects
from p2ptrain.ledger.messages.effects import Effect
from p2ptrain.ledger.messages.events import Accused, Event, PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import EntriesRequest
from p2ptrain.ledger.messages.peer_reports import (
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
from p2ptrain.simulation.claiming import SimClaims
from p2ptrain.simulation.clock import Action, NodeClock
from p2ptrain.simulation.disk import SimDisk, signer, theta_after, verify
from p2ptrain.simulation.network import Payload, SimHeartbeat
from p2ptrain.simulation.trainer import SimTrainer

if TYPE_CHECKING:
    from p2ptrain.simulation.world import SimWorld

HEARTBEAT_S = 2.0

WHOLE_EVERY = 3
"""Every third heartbeat repeats all reports, since earlier ones may have been lost."""

SNAPSHOT_EVERY = 3

WRITE_S = (0.1, 4.0)
"""Shortest and longest time to write a snapshot, in seconds. The range is wide, so that some nodes
finish long before others."""


class ProcessDied(Exception):
    """The process died in the middle of an action; the rest of the action is skipped."""


class SimNode:
    """One node. `disk` survives `stop` and `boot`; everything else belongs to the process.

    Every method that makes the node act can raise ProcessDied. `waiting` holds the actions that
    arrive while the process is paused by a signal; it is None if the process is not paused.
    """

    def __init__(
        self, world: SimWorld, rules: Rules, me: PeerId, clock: NodeClock, *, trains: bool = True
    ) -> None:
        self.me = me
        self.clock = clock
        self.disk = SimDisk()
        self.alive = False
        self.leaving = False
        self.incarnation = 0
        self.trains = trains
        self.waiting: list[Action] | None = None
        self._world = world
        self._rules = rules
        self._dice = Random(f"{rules.run}/{me}")

    def boot(self) -> None:
        """Start a new process on the same disk. Call `begin` next."""
        now = self.clock.now
        self.alive = True
        self.waiting = None
        self.incarnation += 1
        disk, sign = self.disk, signer(self.me)
        kept = (disk.chain, disk.records, now, disk.base)
        self.ledger = Ledger(self._rules, self.me, sign, verify, *kept, self._arrange)
        self.detector = Detector(HEARTBEAT_S)
        self.trainer = SimTrainer(self._rules, self.me, trains=self.trains)
        self.claims = SimClaims(self.me, disk)
        self.theta = Digest(self._rules.run)
        self.theta_step = 0
        self._ready: Ready | None = None
        self._done: ReduceDone | None = None
        self._failed: ReduceFailed | None = None
        self._beats = 0
        self._said: list[Event] = []
        self._training = self._writing = False
        self._unwell: set[PeerId] = set()
        self._look_at = now
        self._watched = {self.me}
        for peer in self._world.others(self.me):
            self.watch(peer)
        self._expect_members()

    def _arrange(self, peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
        """Return a random schedule and order: the ledger must not depend on them."""
        order = list(peers)
        self._dice.shuffle(order)
        return self._dice.choice(SCHEDULES), order

    @property
    def is_running(self) -> bool:
        return self.alive and self.waiting is None

    def watch(self, peer: PeerId) -> None:
        """Let the failure detector watch a new peer."""
        self._watched.add(peer)
        self.detector.watch(peer, self.clock.now)
        self._look_at = min(self._look_at, self.clock.now)

    def _expect_members(self) -> None:
        """Watch all members, as the real node does, including those that left before this process
        started."""
        for member in self.state.members:
            if member not in self._watched:
                self.watch(member)

    def begin(self) -> None:
        self._give_up_reduce()
        if self.disk.terms:
            self.handle(KnownAmendments(frozenset(self.disk.terms)))
        for evidence in self.disk.evidence:
            self.handle(Accused(evidence))
        if self.disk.snapshot is not None:
            self.handle(self.disk.snapshot)
        self.follow()
        self.handle(Tick())

    def stop(self) -> None:
        self.alive = False
        self.waiting = None
        self.incarnation += 1

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    # ── events in, effects out ───────────────────────────────────────────────────────────────────

    def receive(self, sender: PeerId, payload: Payload) -> None:
        if isinstance(payload, SimHeartbeat):
            now = self.clock.now
            self.detector.note_arrival(payload.peer, now)
            if payload.peer in self._unwell or now >= self._look_at:
                self.look_around()
            for event in payload.events:
                self.handle(event)
        else:
            self.handle(Received(sender, payload))

    def look_around(self) -> None:
        """Tell the ledger which peers the failure detector now considers up or down. `receive`
        rarely calls this, because a message from a healthy peer only postpones the next check."""
        for peer, colour in self.detector.changes(self.clock.now):
            if colour is Colour.GREEN:
                self._unwell.discard(peer)
                self.handle(PeerUp(peer))
            else:
                self._unwell.add(peer)
                if colour is Colour.RED:
                    self.handle(PeerDown(peer))
        look_at = self.detector.next_deadline()
        self._look_at = math.inf if look_at is None else look_at

    def deadline(self) -> float:
        """Return the time at which the node wants to wake next."""
        due = self.ledger.next_deadline()
        return self._look_at if due is None or self._look_at < due else due

    def handle(self, event: Event) -> None:
        ledger = self.ledger
        height = ledger.state.height
        if self._rules.claims:
            self._world.heard(self, event, handled=False)
        for effect in ledger.handle(event, self.clock.now):
            if self._world.faults.crashes_now(self):
                raise ProcessDied
            self._carry_out(effect)
        if self._rules.claims:
            self._world.heard(self, event, handled=True)
        if ledger.state.height > height:
            self._expect_members()
            self.follow()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.Persist(record):
                self.disk.append_record(record)
            case effects.Send(peer, message):
                self._send(peer, message)
            case effects.Announce(message):
                self._tell_all(message)
            case effects.Decided(certified):
                self.disk.chain.append(certified)
                self._world.decided(self, certified)
            case effects.Rejoin(height, chain):
                self._world.rejoin(self, height, chain)
                raise ProcessDied
            case effects.FetchUpdate(update, holders):
                self._world.fetch(self, update, holders)
            case effects.AskEntries(peer, from_height):
                self._send(peer, EntriesRequest(from_height))
            case effects.Accuse(evidence):
                self.disk.evidence.append(evidence)

    def _tell_all(self, payload: Payload) -> None:
        for peer in self._world.others(self.me):
            self._send(peer, payload)

    def _send(self, peer: PeerId, payload: Payload) -> None:
        self._world.send(self.me, peer, payload)

    def wake(self) -> None:
        if self.clock.now >= self._look_at:
            self.look_around()
        self.handle(Tick())

    def lost_connection(self, peer: PeerId) -> None:
        self.detector.hint_lost(peer, self.clock.now)
        self.look_around()

    def lacks(self, update: Digest) -> bool:
        """Return whether this node still needs the update's bytes, for a vote or to apply them."""
        wanted = any(each.update == update for each in self.ledger.updates.values())
        return wanted and update not in self.disk.updates

    # ── following the chain ──────────────────────────────────────────────────────────────────────

    def follow(self) -> None:
        """Act on the current state: apply updates, train, report, enter a ring."""
        state = self.state
        self.trainer.follow(state)
        self._apply_updates()
        if self.theta_step < state.step:
            return
        self._train_or_report()
        if state.roster is not None and self.me in state.roster.peers:
            self._take_part(state.head, state.roster)

    def _apply_updates(self) -> None:
        while self.theta_step < self.state.step:
            committed = self.ledger.updates.get(self.theta_step)
            if committed is not None:
                if committed.update not in self.disk.updates:
                    self._world.fetch(self, committed.update, tuple(self._world.others(self.me)))
                    return
                self.theta = theta_after(self.theta, committed.update)
            self.theta_step += 1
            self._world.applied(self, self.theta_step, self.theta)
            self._snapshot()

    def _snapshot(self) -> None:
        """Begin a snapshot if one is due, none is being written, and θ is not far behind."""
        behind = self.state.step - self.theta_step
        if self.theta_step % SNAPSHOT_EVERY or self._writing or behind >= SNAPSHOT_EVERY:
            return
        self._writing = True
        taken = SnapshotTaken(self.me, self.theta_step, self.theta)
        self._world.write(self, taken, self._write_s())

    def _write_s(self) -> float:
        return self._dice.uniform(*WRITE_S)

    def wrote(self, taken: SnapshotTaken) -> None:
        self._writing = False
        self.disk.written.add(taken)
        self.disk.snapshot = taken
        self.handle(taken)

    def _train_or_report(self) -> None:
        left = self.trainer.left(self.state)
        ready = self._with_claim(self.trainer.ready(self.state))
        if left > 0 and not self._training:
            self._training = True
            if not self.trainer.trained:
                self.claims.began_at = self.state.step
            self._world.train(self, left)
        elif ready is not None and ready != self._ready:
            self._ready = ready
            self.handle(ready)
            self.gossip()

    def _with_claim(self, ready: Ready | None) -> Ready | None:
        if ready is None or not ready.blocks or not self._rules.claims:
            return ready
        return self.claims.claimed(ready, self.state, self.trainer.trained)

    def _holds(self, mine: Participant) -> bool:
        """Return whether this process has the work that the roster states, with this claim."""
        if mine.blocks > len(self.trainer.trained):
            return False
        return mine.claim == (None if self._ready is None else self._ready.named)

    def amended(self, terms: Terms) -> None:
        """Store a new amendment, and then tell the ledger about it."""
        self.disk.terms.add(terms)
        self.handle(KnownAmendments(frozenset(self.disk.terms)))

    def trained(self) -> None:
        self._training = False
        self.trainer.finish(self.state)
        self.follow()

    def _take_part(self, entry: Digest, roster: Roster) -> None:
        if self._has_reported(roster):
            return
        mine = next(each for each in roster.participants if each.peer == self.me)
        if self._holds(mine):
            self._world.enter_ring(self, entry, roster)
        else:
            self._give_up_reduce()

    def _has_reported(self, roster: Roster) -> bool:
        """Return whether this node's last report is about the attempt that `roster` opened."""
        told = self._done or self._failed
        return told is not None and (told.step, told.attempt) == (roster.step, roster.attempt)

    def _give_up_reduce(self) -> None:
        """Report a failed reduce if the roster relies on work that this node lost in a restart."""
        roster = self.state.roster
        if roster is not None and self.me in roster.peers:
            self.report(ReduceFailed(self.me, roster.step, roster.attempt, (self.me,)))

    def reduced(self, roster: Roster, update: Digest | None, suspects: tuple[PeerId, ...]) -> None:
        """Handle the end of a ring (one attempt of a reduce), with or without the update's bytes.

        An abandoned ring ends late, perhaps after a newer one. The node then does not report it,
        because the report would replace that of the newer ring. This cannot happen in a real node,
        which runs only one reduce at a time.
        """
        told = [(each.step, each.attempt) for each in (self._done, self._failed) if each]
        if max(told, default=(0, 0)) > (roster.step, roster.attempt):
            return
        if update is None:
            self.report(ReduceFailed(self.me, roster.step, roster.attempt, suspects))
            return
        self.disk.updates.add(update)
        self.handle(UpdateHeld(update))
        self.report(ReduceDone(self.me, roster.step, roster.attempt, update))

    def fetched(self, update: Digest) -> None:
        self.disk.updates.add(update)
        self.handle(UpdateHeld(update))
        self.follow()

    def report(self, report: ReduceDone | ReduceFailed) -> None:
        if isinstance(report, ReduceDone):
            self._done, self._failed = report, None
        else:
            self._failed = report
        self.handle(report)
        self.gossip()

    # ── gossip ───────────────────────────────────────────────────────────────────────────────────

    def gossip(self) -> None:
        beat = self.heartbeat()
        self._tell_all(beat)
        if self.leaving or self._wants_in():
            for event in beat.events:
                self.handle(event)

    def heartbeat(self) -> SimHeartbeat:
        """Return a heartbeat with the node's height and its new reports."""
        said, self._said = self._said, self._reports()
        whole = self._beats % WHOLE_EVERY == 0
        self._beats += 1
        line = self.state.line if self._rules.branches else None
        news = [report for report in self._said if whole or report not in said]
        return SimHeartbeat(self.me, (PeerHeight(self.me, self.state.height, line), *news))

    def _reports(self) -> list[Event]:
        reports: list[Event] = []
        if self._wants_in():
            reports.append(Joining(self.me))
        if self.leaving:
            reports.append(Leaving(self.me))
        elif self._rules.founders_vote:
            reports.append(Staying(self.me))  # Contradict an old goodbye that a liar may replay.
        said = (self._ready, self._done, self._failed, self.disk.snapshot)
        return reports + [report for report in said if report is not None]

    def _wants_in(self) -> bool:
        state = self.state
        there = self.theta_step == state.step and state.phase not in (Phase.ENDED, Phase.HEALED)
        return there and not self.leaving and not state.is_member(self.me)
