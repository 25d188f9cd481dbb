"""The world of simulated nodes: messages, trainers, rings, fetches, crashes, restarts, checkers."""

from __future__ import annotations

import math
from functools import partial
from random import Random

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.branch_rank import rank_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Certified, Commit, Roster, Skip
from p2ptrain.ledger.messages import wire
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.messages import Accept, Promise, Propose
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.simulation.amending import Amending
from p2ptrain.simulation.checkers.accountability import LiarsAreExposed
from p2ptrain.simulation.checkers.audits_watch import checkers_of_audits
from p2ptrain.simulation.checkers.claims_watch import checkers_of_claims, show_report
from p2ptrain.simulation.checkers.delegation_watch import checkers_of_delegation
from p2ptrain.simulation.checkers.founders_watch import checkers_of_open_runs
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.spec_rules import all_checkers
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision
from p2ptrain.simulation.clock import Action, Clock, NodeClock
from p2ptrain.simulation.delegating import Delegating, lying_volunteers, volunteers_of
from p2ptrain.simulation.disk import SimDisk
from p2ptrain.simulation.faults import Faults
from p2ptrain.simulation.kinds import kind_of
from p2ptrain.simulation.liars.audit_liar import AuditLiar
from p2ptrain.simulation.liars.claim_liar import ClaimLiar, last_founders
from p2ptrain.simulation.liars.spoiling import Spoiler
from p2ptrain.simulation.liars.sybil import crowd_of, tricks_of
from p2ptrain.simulation.network import Payload, SimHeartbeat, SimNetwork
from p2ptrain.simulation.node import HEARTBEAT_S, ProcessDied, SimNode
from p2ptrain.simulation.profiles import Profile
from p2ptrain.simulation.rings import SimRings
from p2ptrain.simulation.speeds import Speeds
from p2ptrain.simulation.trace import Trace, spelled_value

FETCH_S = (0.02, 0.2)
FETCH_AGAIN_S = 0.5

REJOIN_S = 0.2

HINT_CHANCE = 0.9
"""Probability that a peer notices a death at once: a dying process resets its connections, but a
dying machine or cable does not."""


class SimWorld:
    """The nodes by name, and everything around them. `latest` is the furthest state that any node
    has decided. `longest_calm_s` is the longest time without a commit after all faults ended. At
    `trained_by`, all training that has started so far will have ended. The last pause after several
    skipped steps ended at `rested_at`."""

    def __init__(self, random: Random, rules: Rules, profile: Profile) -> None:
        self.random = random
        self.rules = rules
        self.profile = profile
        self.clock = Clock()
        self.troubles = Troubles(self.clock)
        self.speeds = Speeds(rules, profile, self.troubles)
        self.network = SimNetwork(self.clock, random, profile, self._deliver)
        self.rings = SimRings(self.clock, random, profile, self.network)
        self.latest = genesis(rules)
        self.lines = Lines(self.latest)
        self.sybils = crowd_of(random, profile.sybils)
        self.tricks = tricks_of(random) if self.sybils else frozenset()
        self.volunteers = volunteers_of(profile)
        lying = lying_volunteers(random, self.volunteers)
        self.claim_liars: dict[PeerId, ClaimLiar] = {}
        self.audit_liars: dict[PeerId, AuditLiar] = {}
        self.offering: dict[PeerId, float] = {}
        liars = last_founders(rules, profile.liars + profile.claim_liars + profile.audit_liars)
        self.liars = frozenset((*liars, *self.sybils, *lying))
        self.spoilers = rules.founders[len(rules.founders) - profile.spoilers :]
        self.said_goodbye: set[PeerId] = set()
        known = self.liars, self.troubles
        self.checkers = all_checkers(rules, *known, profile, self.lines, self.rings.spoilers)
        if profile.open:
            self.checkers += checkers_of_open_runs(rules, *known, self.said_goodbye)
            seeds = frozenset(rules.founders[: profile.seeds_among_peers])
            self.checkers += checkers_of_delegation(rules, *known, seeds)
        if profile.claims:
            self.checkers += checkers_of_claims(rules, self.liars, self.claim_liars)
        if profile.audits:
            self.checkers += checkers_of_audits(rules, *known, self.audit_liars, self.offering)
        self.exposure = next(it for it in self.checkers if isinstance(it, LiarsAreExposed))
        self.trace: Trace | None = None
        self.nodes: dict[PeerId, SimNode] = {}
        self.commits = self.skips = self.restarts = self._skipped = 0
        self.committed_at = self.stepped_at = self.rested_at = self.longest_calm_s = 0.0
        self.trained_by = 0.0
        self._states: dict[Digest, LedgerState] = {self.latest.head: self.latest}
        self._wake_at: dict[PeerId, float] = {}
        self._disks: dict[PeerId, SimDisk] = {}
        self.faults = Faults(self)
        self.amending = Amending(self)
        self.delegating = Delegating(self)
        for index, name in enumerate(rules.founders):
            self.add_node(name, trains=index >= profile.seeds_among_peers)

    @property
    def progressed_at(self) -> float:
        """The time from which a lack of progress counts. In an open run with honest founders, outer
        steps must end even during faults. Other runs must make progress only after the faults."""
        faults_s = self.profile.faults_s
        if self.profile.open:
            since = max(self.stepped_at, self.rested_at)
            return since if not self.profile.liars else max(since, faults_s)
        return max(self.committed_at, faults_s)

    # ── nodes come and go ────────────────────────────────────────────────────────────────────────

    def add_node(self, name: PeerId, *, trains: bool = True) -> None:
        kind, drift = kind_of(self, name), self.profile.clock_drift
        clock = NodeClock(self.clock, 1 + self.random.uniform(-drift, drift) if drift else 1.0)
        node = kind(self, self.rules, name, clock, trains=trains)
        if self.random.random() < self.profile.slow_peers:
            self.troubles.slow.add(name)
        self.speeds.draw(name)
        self.nodes[name] = node
        if isinstance(node, Spoiler):
            self.rings.spoilers[name] = node
        if isinstance(node, ClaimLiar):
            self.claim_liars[name] = node
        if isinstance(node, AuditLiar):
            self.audit_liars[name] = node
        self._disks[name] = node.disk
        for other in self.nodes.values():
            if other.alive:
                other.watch(name)
        self.amending.meet(node)
        self.start_node(node)

    @property
    def keeper(self) -> PeerId | None:
        """The first founder, if other nodes prune; else None. It keeps the whole chain and never
        fails, because otherwise entries that a node needs could be lost."""
        return self.rules.founders[0] if self.profile.pruners else None

    def start_node(self, node: SimNode) -> None:
        self.record_event(node.me, "starts")
        self.troubles.end(node.me)
        node.boot()
        for checker in self.checkers:
            checker.on_boot(node.me)
        self._check_state(node)
        self._beat(node, self.random.uniform(0.0, 0.3))
        self.run_action(node, node.begin)

    def stop_node(self, node: SimNode) -> None:
        """Kill the process. Connected peers usually see a reset connection."""
        if not node.alive:
            return
        self.record_event(node.me, "dies")
        self.troubles.begin(node.me)
        node.stop()
        self.rings.lost(node.me)
        for other in self.nodes.values():
            connected = other.alive and self.network.connects(node.me, other.me)
            if connected and self.random.random() < HINT_CHANCE:
                delay_s = self.random.uniform(0.001, 0.05)
                self.run_action_later(other, delay_s, partial(other.lost_connection, node.me))

    def rejoin(self, node: SimNode, height: int, chain: tuple[Certified, ...]) -> None:
        """Replace the node's entries above `height` with `chain`, and restart the node."""
        dropped = node.disk.chain[height:]
        node.disk.chain[height:] = chain
        node.disk.snapshot = None  # It may belong to the dropped entries.
        self.record_event(node.me, f"switches to a different chain from height {height + 1}")
        for checker in self.checkers:
            checker.on_rejoin(node.me, dropped, chain)
        node.stop()
        self.rings.lost(node.me)

        def begin() -> None:
            if not node.alive and node.me not in self.faults.gone:
                self.start_node(node)

        self.clock.after(REJOIN_S, begin)

    def pause_node(self, node: SimNode) -> None:
        """Pause the process as a signal would. Its machine still receives messages."""
        self.record_event(node.me, "is stopped")
        self.troubles.begin(node.me)
        node.waiting = []

    def resume_node(self, node: SimNode) -> None:
        """Continue a paused process, and run the actions that arrived during the pause."""
        if node.waiting is None:
            return
        self.record_event(node.me, "resumes")
        self.troubles.end(node.me)
        actions, node.waiting = node.waiting, None
        for action in (node.wake, *actions):
            if node.alive:
                self.run_action(node, action)

    def leap(self, node: SimNode, seconds: float) -> None:
        self.record_event(node.me, f"has its clock leap ahead by {seconds:.1f} s")
        self.troubles.begin(node.me)
        self.troubles.end(node.me)
        node.clock.leap(seconds)
        self.run_action(node, node.wake)

    def run_action(self, node: SimNode, action: Action) -> None:
        """Run an action of the node. If the process dies, the rest of the action is skipped.
        A paused process runs the action when it is resumed."""
        if node.waiting is not None:
            node.waiting.append(action)
            return
        try:
            action()
        except ProcessDied:
            return
        self._wake_later(node)

    def run_action_later(self, node: SimNode, delay_s: float, action: Action) -> None:
        """Run an action of the node after some time, unless its process has ended by then."""
        incarnation = node.incarnation

        def act() -> None:
            if node.incarnation == incarnation:
                self.run_action(node, action)

        self.clock.after(delay_s, act)

    def _beat(self, node: SimNode, delay_s: float) -> None:
        def beat() -> None:
            self._beat(node, HEARTBEAT_S / node.clock.rate * self.random.uniform(0.9, 1.1))
            node.gossip()

        self.run_action_later(node, delay_s, beat)

    def _wake_later(self, node: SimNode) -> None:
        """Plan a wake-up at the node's next deadline."""
        if not node.alive:
            return
        due = node.deadline()
        if due == math.inf:
            return
        now = self.clock.now
        at = now + node.clock.time_until(due)
        planned = self._wake_at.get(node.me)
        if planned is not None and now < planned <= at:
            return
        self._wake_at[node.me] = at
        self.clock.at(at, partial(self._wake, node, at))

    def _wake(self, node: SimNode, due: float) -> None:
        if self._wake_at.get(node.me) == due:
            del self._wake_at[node.me]
            if node.alive:
                self.run_action(node, node.wake)

    # ── what nodes call ──────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> float:
        return self.clock.now

    def others(self, me: PeerId) -> list[PeerId]:
        """Return all other peers except those that have vanished."""
        gone = self.faults.gone
        return [peer for peer in self.nodes if peer != me and peer not in gone]

    def send(self, sender: PeerId, receiver: PeerId, payload: Payload) -> None:
        if not isinstance(payload, SimHeartbeat):
            if isinstance(payload, Accept | Promise | Propose):
                for checker in self.checkers:
                    checker.on_vote(sender, payload, self.nodes[sender].disk)
            if self.profile.through_wire:
                payload = wire.decode(wire.encode(payload))
            if self.trace is not None:
                self.trace.message(self.clock.now, sender, receiver, payload)
        self.network.send(sender, receiver, payload)

    def heard(self, node: SimNode, event: Event, *, handled: bool) -> None:
        """Show the checkers a report about a claim that an honest node handles."""
        if node.me not in self.liars:
            show_report(self.checkers, node.me, event, node.state, node.disk, handled=handled)

    def record_event(self, peer: PeerId, what: str) -> None:
        """Record an event of `peer` for the transcript."""
        if self.trace is not None:
            self.trace.note(self.clock.now, peer, what)

    def _deliver(self, sender: PeerId, receiver: PeerId, payload: Payload) -> None:
        node = self.nodes[receiver]
        if node.alive:
            self.run_action(node, partial(node.receive, sender, payload))

    def decided(self, node: SimNode, certified: Certified) -> None:
        if node.me in self.liars:
            return
        entry = certified.entry
        before = self._states[entry.parent]
        if node.state.height == entry.height:
            self._check_state(node)
        after = self._states.get(entry.digest)
        is_first = after is None
        if after is None:
            after = self._states[entry.digest] = apply(self.rules, before, entry)
            self.lines.note(after)
            self._count(certified)
        if self._is_further(after):
            if after.step > self.latest.step:
                self.stepped_at = self.clock.now
            elif self._skipped > 1 and after.attempt > before.attempt == 0:
                self.rested_at = self.clock.now
            self.latest = after
            self.faults.recall(after.voters)
        ring = self.rings.by_entry.get(entry.parent)
        trained = {} if ring is None else ring.blocks
        known = self._disks, trained, is_first, self.clock.now
        decision = Decision(node.me, certified, before, after, *known)
        if self.trace is not None:
            self.record_event(node.me, f"has entry {entry.height}: {spelled_value(entry.value)}")
        for checker in self.checkers:
            checker.on_decision(decision)

    def _is_further(self, state: LedgerState) -> bool:
        if not self.rules.branches:
            return state.height > self.latest.height
        return state.phase is not Phase.HEALED and rank_of(state) > rank_of(self.latest)

    def _check_state(self, node: SimNode) -> None:
        for checker in self.checkers:
            checker.on_state(node.me, node.state)

    def _count(self, certified: Certified) -> None:
        value = certified.entry.value
        if isinstance(value, Commit):
            self.commits += 1
            began = max(self.committed_at, self.profile.faults_s)
            self.longest_calm_s = max(self.longest_calm_s, self.clock.now - began)
            self.committed_at = self.clock.now
        self.skips += isinstance(value, Skip)
        if isinstance(value, Commit | Skip):
            self._skipped = 0 if isinstance(value, Commit) else self._skipped + 1

    def applied(self, node: SimNode, step: int, theta: Digest) -> None:
        committed = node.ledger.updates.get(step - 1) if self.rules.branches else None
        ended = None if committed is None else node.ledger.kept.at(committed.height)
        if ended is None and self.rules.branches:
            return
        for checker in self.checkers:
            checker.on_applied(node.me, step, theta, None if ended is None else ended.entry.digest)

    def enter_ring(self, node: SimNode, entry: Digest, roster: Roster) -> None:
        mine = next(each for each in roster.participants if each.peer == node.me)
        blocks, incarnation = node.trainer.trained[: mine.blocks], node.incarnation

        def finish(update: Digest | None, suspects: tuple[PeerId, ...]) -> None:
            if node.incarnation == incarnation:
                self.run_action(node, partial(node.reduced, roster, update, suspects))

        self.rings.enter(entry, roster, node.me, blocks, finish)

    def fetch(self, node: SimNode, update: Digest, holders: tuple[PeerId, ...]) -> None:
        """Simulate the swarm: the bytes arrive later if a holder can be reached."""

        def arrive() -> None:
            sources = [self.nodes[peer] for peer in holders if self.network.joins(node.me, peer)]
            held = any(each.is_running and update in each.disk.updates for each in sources)
            if held or update in node.disk.updates:
                node.fetched(update)
            elif node.lacks(update):
                self.run_action_later(node, FETCH_AGAIN_S, arrive)

        self.run_action_later(node, self.random.uniform(*FETCH_S), arrive)

    def train(self, node: SimNode, blocks: int) -> None:
        duration_s = self.speeds.training_s(node.me, blocks, self.random)
        self.trained_by = max(self.trained_by, self.clock.now + duration_s)
        self.run_action_later(node, duration_s, node.trained)

    def write(self, node: SimNode, taken: SnapshotTaken, seconds: float) -> None:
        self.run_action_later(node, seconds, partial(node.wrote, taken))
