"""The world around simulated nodes: it carries their messages, runs their trainers, rings and
fetches, kills and starts them, and shows the checkers everything that happens.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger import wire
from p2ptrain.ledger.messages import Accept, Message, Promise, Propose
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, apply, genesis
from p2ptrain.ledger.values import Certified, Commit, Roster, Skip
from p2ptrain.testing.simulation.checkers import Decision, all_checkers
from p2ptrain.testing.simulation.clock import Action, Clock
from p2ptrain.testing.simulation.disk import Disk
from p2ptrain.testing.simulation.faults import Faults
from p2ptrain.testing.simulation.heartbeat import Heartbeat
from p2ptrain.testing.simulation.network import Network
from p2ptrain.testing.simulation.node import HEARTBEAT_S, ProcessDied, SimNode
from p2ptrain.testing.simulation.profiles import Profile
from p2ptrain.testing.simulation.rings import Rings

TRAIN_S = (0.8, 1.6)
"""An inner phase: shorter than real ones, so that faults of all kinds fall into every part of
a step.
"""

FETCH_S = (0.02, 0.2)
FETCH_AGAIN_S = 0.5

SLOWNESS = 6.0
"""A slow peer takes so many times as long, which is beyond the grace time."""

HINT_CHANCE = 0.9
"""A dying process resets its connections; a dying machine or cable does not."""


class SimWorld:
    """Nodes by name. `latest` is the furthest state that any node has decided."""

    def __init__(self, random: Random, rules: Rules, profile: Profile) -> None:
        self.random = random
        self.rules = rules
        self.profile = profile
        self.clock = Clock()
        self.network = Network(self.clock, random, profile, self._deliver)
        self.rings = Rings(self.clock, random, profile, self.network)
        self.checkers = all_checkers(rules)
        self.nodes: dict[PeerId, SimNode] = {}
        self.latest = genesis(rules)
        self.commits = self.skips = self.restarts = 0
        self._states: dict[Digest, LedgerState] = {self.latest.head: self.latest}
        self._wake_at: dict[PeerId, float] = {}
        self._slowness: dict[PeerId, float] = {}
        for index, name in enumerate(rules.founders):
            self.add_node(name, trains=index >= profile.seeds_among_peers)
        self.faults = Faults(self)

    # ── nodes come and go ────────────────────────────────────────────────────────────────────────

    def add_node(self, name: PeerId, *, trains: bool = True) -> None:
        node = SimNode(self, self.rules, name, trains=trains)
        slow = self.random.random() < self.profile.slow_peers
        self._slowness[name] = SLOWNESS if slow else 1.0
        self.nodes[name] = node
        for other in self.nodes.values():
            if other.alive:
                other.detector.watch(name, self.now)
        self.start_node(node)

    def start_node(self, node: SimNode) -> None:
        node.boot()
        self._check_state(node)
        self._beat(node, self.random.uniform(0.0, 0.3))
        self.let(node, node.begin)

    def restart_node(self, node: SimNode) -> None:
        self.restarts += 1
        self.start_node(node)

    def stop_node(self, node: SimNode) -> None:
        """The process dies; who has a connection to it sees it reset, most of the time."""
        if not node.alive:
            return
        node.stop()
        self.rings.lost(node.me)
        for other in self.nodes.values():
            connected = other.alive and self.network.connects(node.me, other.me)
            if connected and self.random.random() < HINT_CHANCE:
                delay_s = self.random.uniform(0.001, 0.05)
                self._let_later(other, delay_s, partial(other.lost_connection, node.me))

    def let(self, node: SimNode, action: Action) -> None:
        """The node does something, as far as it lives to do it."""
        with suppress(ProcessDied):
            action()
        self._wake_later(node)

    def _let_later(self, node: SimNode, delay_s: float, action: Action) -> None:
        """The same after some time, if the process is still the same one then."""
        incarnation = node.incarnation

        def act() -> None:
            if node.incarnation == incarnation:
                self.let(node, action)

        self.clock.after(delay_s, act)

    def _beat(self, node: SimNode, delay_s: float) -> None:
        def beat() -> None:
            self._beat(node, HEARTBEAT_S * self.random.uniform(0.9, 1.1))
            node.gossip()

        self._let_later(node, delay_s, beat)

    def _wake_later(self, node: SimNode) -> None:
        """See to it that the node looks at its clock when it wants to."""
        if not node.alive:
            return
        wanted = [node.ledger.next_deadline(), node.detector.next_deadline()]
        due = min((time for time in wanted if time is not None), default=None)
        planned = self._wake_at.get(node.me)
        if due is None or (planned is not None and self.now < planned <= due):
            return
        self._wake_at[node.me] = due = max(due, self.now)
        self.clock.at(due, partial(self._wake, node, due))

    def _wake(self, node: SimNode, due: float) -> None:
        if self._wake_at.get(node.me) == due:
            del self._wake_at[node.me]
            if node.alive:
                self.let(node, node.wake)

    # ── what nodes do to the world (node.World) ──────────────────────────────────────────────────

    @property
    def now(self) -> float:
        return self.clock.now

    def others(self, me: PeerId) -> list[PeerId]:
        return [peer for peer in self.nodes if peer != me]

    def send(self, sender: PeerId, receiver: PeerId, payload: Message | Heartbeat) -> None:
        if isinstance(payload, Accept | Promise | Propose):
            for checker in self.checkers:
                checker.on_vote(sender, payload, self.nodes[sender].disk)
        if self.profile.through_wire and not isinstance(payload, Heartbeat):
            payload = wire.decode(wire.encode(payload))
        self.network.send(sender, receiver, payload)

    def _deliver(self, sender: PeerId, receiver: PeerId, payload: Message | Heartbeat) -> None:
        node = self.nodes[receiver]
        if node.alive:
            self.let(node, partial(node.receive, sender, payload))

    def decided(self, node: SimNode, certified: Certified) -> None:
        entry = certified.entry
        before = self._states[entry.parent]
        after = apply(self.rules, before, entry)
        if node.state.height == entry.height:
            self._check_state(node)
        if entry.digest not in self._states:
            self._states[entry.digest] = after
            self._count(certified)
        if after.height > self.latest.height:
            self.latest = after
        ring = self.rings.by_entry.get(entry.parent)
        trained = {} if ring is None else ring.blocks
        disks: dict[PeerId, Disk] = {name: each.disk for name, each in self.nodes.items()}
        decision = Decision(node.me, certified, before, after, disks, trained)
        for checker in self.checkers:
            checker.on_decision(decision)

    def _check_state(self, node: SimNode) -> None:
        for checker in self.checkers:
            checker.on_state(node.me, node.state)

    def _count(self, certified: Certified) -> None:
        value = certified.entry.value
        self.commits += isinstance(value, Commit)
        self.skips += isinstance(value, Skip)

    def applied(self, node: SimNode, step: int, theta: Digest) -> None:
        for checker in self.checkers:
            checker.on_applied(node.me, step, theta)

    def enter_ring(self, node: SimNode, entry: Digest, roster: Roster) -> None:
        mine = next(each for each in roster.participants if each.peer == node.me)
        blocks = node.trainer.trained[: mine.blocks]
        incarnation = node.incarnation

        def finish(update: Digest | None, suspects: tuple[PeerId, ...]) -> None:
            if node.incarnation == incarnation:
                self.let(node, partial(node.reduced, roster, update, suspects))

        self.rings.enter(entry, roster, node.me, blocks, finish)

    def fetch(self, node: SimNode, update: Digest, holders: tuple[PeerId, ...]) -> None:
        """The swarm: some time later the bytes are there, if any holder could be reached."""

        def arrive() -> None:
            sources = [self.nodes[peer] for peer in holders if self.network.joins(node.me, peer)]
            held = any(source.alive and update in source.disk.updates for source in sources)
            if held or update in node.disk.updates:
                node.fetched(update)
            elif node.lacks(update):
                self._let_later(node, FETCH_AGAIN_S, arrive)

        self._let_later(node, self.random.uniform(*FETCH_S), arrive)

    def train(self, node: SimNode, blocks: int) -> None:
        share = blocks / self.rules.blocks_per_lease
        duration_s = share * self._slowness[node.me] * self.random.uniform(*TRAIN_S)
        self._let_later(node, duration_s, node.trained)

    def crashes_now(self, node: SimNode) -> bool:
        return self.faults.crashes_now(node)
