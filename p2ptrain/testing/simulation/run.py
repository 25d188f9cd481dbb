"""One simulated run: a world of nodes, what goes wrong in it, and what came of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger import wire
from p2ptrain.ledger.messages import Accept, Message, Promise, Propose
from p2ptrain.ledger.rules import QuorumPolicy, Rules
from p2ptrain.ledger.state import LedgerState, Phase, apply, genesis
from p2ptrain.ledger.values import Certified, Commit, Roster, Skip
from p2ptrain.testing.simulation.checkers import Decision, all_checkers
from p2ptrain.testing.simulation.clock import Clock
from p2ptrain.testing.simulation.disk import Disk
from p2ptrain.testing.simulation.faults import Faults
from p2ptrain.testing.simulation.heartbeat import Heartbeat
from p2ptrain.testing.simulation.network import Network
from p2ptrain.testing.simulation.node import HEARTBEAT_S, SimNode
from p2ptrain.testing.simulation.profiles import PROFILES, Profile
from p2ptrain.testing.simulation.rings import Rings

TRAIN_S = (0.8, 1.6)
"""An inner phase: shorter than real ones, so that faults of all kinds fall into every part of
a step.
"""

HINT_CHANCE = 0.9
"""A dying process resets its connections; a dying machine or cable does not."""

VIOLATIONS_MAX = 20
"""A broken world objects at every step; so many lines say it all."""


@dataclass(frozen=True, slots=True)
class SimReport:
    """`stuck` says in words where a run stood still; empty if it went on to its end."""

    seed: int
    profile: str
    outer_steps: int
    commits: int
    skips: int
    height: int
    violations: tuple[str, ...]
    stuck: str
    virtual_s: float
    messages: int
    restarts: int
    members_seen: int

    @property
    def good(self) -> bool:
        return not self.violations and not self.stuck


def simulate(
    seed: int,
    *,
    peers: int = 4,
    steps: int = 10,
    profile: str | Profile = "calm",
    quorum: QuorumPolicy = "majority",
) -> SimReport:
    """Run `steps` outer steps of `peers` founders. The same arguments give the same report."""
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    return Simulation(seed, peers, steps, chosen, quorum).run()


class Simulation:
    """The world around the nodes, and the observer that feeds the checkers."""

    def __init__(
        self, seed: int, peers: int, steps: int, profile: Profile, quorum: QuorumPolicy
    ) -> None:
        self.random = Random(f"{profile.name}/{seed}")
        self.clock = Clock()
        self.profile = profile
        self.seed = seed
        names = [PeerId(f"p{index}") for index in range(peers)]
        self.rules = _rules(seed, tuple(names), steps, quorum)
        self.network = Network(self.clock, self.random, profile, self._deliver)
        self.rings = Rings(self.clock, self.random, profile, self.network)
        self.checkers = all_checkers(self.rules)
        self.nodes: dict[PeerId, SimNode] = {}
        self.restarts = 0
        self.commits = self.skips = 0
        self.states: dict[Digest, LedgerState] = {Digest(self.rules.run): genesis(self.rules)}
        self.latest = genesis(self.rules)
        self._wake_at: dict[PeerId, float] = {}
        self._speed: dict[PeerId, float] = {}
        for index, name in enumerate(names):
            self.add_node(name, trains=index >= profile.seeds_among_peers)
        self.faults = Faults(self)

    # ── the run ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> SimReport:
        stuck = ""
        progress = (0, 0.0)
        while not self._over():
            if not self.clock.step():
                stuck = "nothing is planned any more"
                break
            if self.latest.step > progress[0] or self.clock.now < self.profile.faults_s:
                progress = (self.latest.step, self.clock.now)
            if self.clock.now - progress[1] > self.profile.settle_s:
                stuck = self._why_stuck()
                break
        return self._report(stuck)

    def _why_stuck(self) -> str:
        voters = self.latest.voters
        up = [voter for voter in voters if self.nodes[voter].alive]
        where = f"step {self.latest.step}, height {self.latest.height}"
        return f"{where}: {len(up)} of {len(voters)} voters are up, and nothing happens"

    def _over(self) -> bool:
        if self.latest.phase is not Phase.ENDED:
            return False
        return all(node.state.phase is Phase.ENDED for node in self.nodes.values() if node.alive)

    def _report(self, stuck: str) -> SimReport:
        violations = [text for checker in self.checkers for text in checker.violations]
        return SimReport(
            seed=self.seed,
            profile=self.profile.name,
            outer_steps=self.latest.step,
            commits=self.commits,
            skips=self.skips,
            height=self.latest.height,
            violations=tuple(violations[:VIOLATIONS_MAX]),
            stuck=stuck,
            virtual_s=round(self.clock.now, 3),
            messages=self.network.messages,
            restarts=self.restarts,
            members_seen=len(self.nodes),
        )

    # ── nodes come and go ────────────────────────────────────────────────────────────────────────

    def add_node(self, name: PeerId, *, trains: bool = True) -> None:
        node = SimNode(self, self.rules, name, trains=trains)
        slow = self.random.random() < self.profile.slow_peers
        self._speed[name] = 6.0 if slow else 1.0
        self.nodes[name] = node
        for other in self.nodes.values():
            if other.alive:
                other.detector.watch(name, self.now)
        self.start_node(node)

    def start_node(self, node: SimNode) -> None:
        node.start()
        self._check_state(node)
        self._beat(node, node.incarnation, self.random.uniform(0.0, 0.3))
        self.wake_later(node)

    def stop_node(self, node: SimNode) -> None:
        """The process dies; who has a connection to it sees it reset, most of the time."""
        if not node.alive:
            return
        node.stop()
        self.rings.lost(node.me)
        for other in self.nodes.values():
            connected = other.alive and self.network.connects(node.me, other.me)
            if connected and self.random.random() < HINT_CHANCE:
                self._hint_later(other, node.me)

    def _hint_later(self, node: SimNode, lost: PeerId) -> None:
        incarnation = node.incarnation

        def hint() -> None:
            if node.incarnation == incarnation:
                node.detector.hint_lost(lost, self.now)
                node.look_around()
                self.wake_later(node)

        self.clock.after(self.random.uniform(0.001, 0.05), hint)

    def _beat(self, node: SimNode, incarnation: int, delay_s: float) -> None:
        def beat() -> None:
            if node.incarnation == incarnation:
                node.gossip()
                self.wake_later(node)
                self._beat(node, incarnation, HEARTBEAT_S * self.random.uniform(0.9, 1.1))

        self.clock.after(delay_s, beat)

    def wake_later(self, node: SimNode) -> None:
        """See to it that the node looks at its clock when it wants to."""
        if not node.alive:
            return
        wanted = [node.ledger.next_deadline(), node.detector.next_deadline()]
        due = min((time for time in wanted if time is not None), default=None)
        planned = self._wake_at.get(node.me)
        if due is None or (planned is not None and self.now < planned <= due):
            return
        self._wake_at[node.me] = due = max(due, self.now)
        self.clock.at(due, lambda: self._wake(node, due))

    def _wake(self, node: SimNode, due: float) -> None:
        if self._wake_at.get(node.me) != due:
            return
        del self._wake_at[node.me]
        if node.alive:
            node.look_around()
            node.tick()
            self.wake_later(node)

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
            node.receive(sender, payload)
            self.wake_later(node)

    def decided(self, node: SimNode, certified: Certified) -> None:
        entry = certified.entry
        before = self.states[entry.parent]
        after = apply(self.rules, before, entry)
        if node.state.height == entry.height:
            self._check_state(node)
        if entry.digest not in self.states:
            self.states[entry.digest] = after
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
        incarnation = node.incarnation
        mine = next(each for each in roster.participants if each.peer == node.me)
        blocks = node.trainer.trained[: mine.blocks]

        def finish(update: Digest | None, suspects: tuple[PeerId, ...]) -> None:
            if node.incarnation == incarnation:
                node.reduced(roster, update, suspects)
                self.wake_later(node)

        self.rings.enter(entry, roster, node.me, blocks, finish)

    def fetch(self, node: SimNode, update: Digest, holders: tuple[PeerId, ...]) -> None:
        """The swarm: some time later the bytes are there, if any holder could be reached."""
        incarnation = node.incarnation

        def arrive() -> None:
            if node.incarnation != incarnation:
                return
            sources = [self.nodes[peer] for peer in holders if self.network.joins(node.me, peer)]
            held = any(source.alive and update in source.disk.updates for source in sources)
            if held or update in node.disk.updates:
                node.fetched(update)
            elif node.lacks(update):
                self.clock.after(0.5, arrive)
            self.wake_later(node)

        self.clock.after(self.random.uniform(0.02, 0.2), arrive)

    def train(self, node: SimNode, blocks: int) -> None:
        incarnation = node.incarnation

        def finish() -> None:
            if node.incarnation == incarnation:
                node.trained()
                self.wake_later(node)

        share = blocks / self.rules.blocks_per_lease
        duration_s = share * self._speed[node.me] * self.random.uniform(*TRAIN_S)
        self.clock.after(duration_s, finish)

    def crashes_now(self, node: SimNode) -> bool:
        return self.faults.crashes_now(node)


def _rules(seed: int, founders: tuple[PeerId, ...], steps: int, quorum: QuorumPolicy) -> Rules:
    return Rules(
        run=RunId(hashlib.sha256(f"run {seed}".encode()).hexdigest()),
        founders=founders,
        outer_steps=steps,
        blocks=64,
        blocks_per_lease=4,
        tokens_per_block=1000,
        participants_min=2 if len(founders) > 2 else 1,
        attempts_max=3,
        grace_s=3.0,
        round_timeout_s=0.6,
        patience_s=0.3,
        quorum=quorum,
    )
