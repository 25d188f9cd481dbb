"""Plan faults from one seed at a profile's rates: crashes, network cuts, joins and leaves.

A run that permanently loses its majority has to stop, and would not test anything. So peers vanish
only while the remaining ones can decide. Vanished voters return when the faults end, because a
roster that was being decided when they vanished, or is decided later, may need their votes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.simulation.node import SimNode

if TYPE_CHECKING:
    from p2ptrain.simulation.world import SimWorld

GOODBYE_S = 6.0
"""Seconds that a leaving node stays to vote for the roster that omits it."""

FOUNDERS_MIN = 3
"""Minimum number of founders in a run in which founders go away: with fewer, the run could stop."""
SYBILS_COME_S = 6.0
SAYS_GOODBYE = 0.6
GOES_FOR_EVER = 0.05

RETURNS = 0.5
"""Probability that the next peer to join is one that has left, with its old disk."""


class Faults:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._random = world.random
        self._active = True
        self.gone: set[PeerId] = set()
        self.destroyed: set[PeerId] = set()
        profile = world.profile
        self._plan(profile.crash_every_s, self._crash)
        self._plan(profile.partition_every_s, self._cut)
        self._plan(profile.join_every_s, self._join)
        self._plan(profile.leave_every_s, self._leave)
        self._plan(profile.vanish_every_s, self._vanish)
        self._plan(profile.pause_every_s, self._pause)
        self._plan(profile.clock_leap_every_s, self._leap)
        for name in world.sybils:
            at = self._random.uniform(0.0, SYBILS_COME_S)
            world.clock.at(at, partial(world.add_node, name))
        self.lost: PeerId | None = None
        self._plan_absence()
        world.clock.at(profile.faults_s, self._end)

    def _plan(self, every_s: float, fault: Callable[[], None]) -> None:
        if every_s <= 0:
            return

        def happen() -> None:
            if self._active:
                fault()
                self._plan(every_s, fault)

        self._world.clock.after(self._random.expovariate(1 / every_s), happen)

    def _end(self) -> None:
        """Stop all faults, and restart the nodes that are down temporarily."""
        self._active = False
        founders = self._world.rules.founders if self._world.profile.open else ()
        self._world.network.faulty = self._world.rings.faulty = False
        self._heal()
        self.recall(self._world.latest.voters)
        for node in list(self._world.nodes.values()):
            self._world.resume_node(node)
            if node.me not in founders:  # An absent founder returns by its own timer.
                self._restart(node)

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────

    def _crash(self) -> None:
        keeper = self._world.keeper
        alive = [node for node in self._world.nodes.values() if node.alive and node.me != keeper]
        if self._world.profile.open:  # Founders go one at a time (`_let_a_founder_go`, `destroy`).
            alive = [node for node in alive if node.me not in self._world.rules.founders]
        if alive:
            self._crash_node(self._random.choice(alive))

    def _crash_node(self, node: SimNode) -> None:
        self._world.stop_node(node)
        down_s = self._random.uniform(*self._world.profile.down_s)
        self._world.clock.after(down_s, lambda: self._restart(node))

    def _restart(self, node: SimNode) -> None:
        if not node.alive and node.me not in self.gone:
            node.leaving = False
            self._world.restarts += 1
            self._world.start_node(node)

    def crashes_now(self, node: SimNode) -> bool:
        """Draw whether the node crashes before its next effect. If so, crash it and return True.
        Its remaining effects are lost."""
        chance = self._world.profile.crash_in_effects
        if not self._active or not chance or node.me == self._world.keeper:
            return False
        if self._random.random() >= chance:
            return False
        self._crash_node(node)
        return True

    # ── open runs ────────────────────────────────────────────────────────────────────────────────

    def _plan_absence(self) -> None:
        every_s = self._world.profile.founder_away_every_s
        if every_s > 0 and self._active and self.lost is None:
            delay_s = self._random.expovariate(1 / every_s)
            self._world.clock.after(delay_s, self._let_a_founder_go)

    def _let_a_founder_go(self) -> None:
        """Make a founder crash or say goodbye. The next founder can go only after this one is back.
        In some runs one founder never comes back, so no other founder goes after it."""
        world, founders = self._world, self._world.rules.founders
        there = [world.nodes[name] for name in founders if name not in world.liars]
        if not self._active or len(founders) < FOUNDERS_MIN:
            return
        node = self._random.choice(there)
        if len(there) == len(founders) and self._random.random() < GOES_FOR_EVER:
            self.lost = node.me
        if self._random.random() < SAYS_GOODBYE:
            world.said_goodbye.add(node.me)
            self._say_goodbye(node)
            world.clock.after(GOODBYE_S, partial(self._take_away, node))
        else:
            self._take_away(node)

    def _take_away(self, node: SimNode) -> None:
        self._world.stop_node(node)
        away_s = self._random.uniform(*self._world.profile.founder_away_s)
        self._world.clock.after(away_s, partial(self._come_back, node))

    def _come_back(self, node: SimNode) -> None:
        if node.me != self.lost:
            self._restart(node)
            self._plan_absence()

    def destroy(self, node: SimNode) -> None:
        """Take away a machine and its disk for good."""
        self._world.stop_node(node)
        self.gone.add(node.me)
        self.destroyed.add(node.me)

    def repair(self, node: SimNode) -> None:
        """Bring back a machine that counted as gone for good."""
        self.gone.discard(node.me)
        self.destroyed.discard(node.me)
        self._restart(node)

    # ── partitions ───────────────────────────────────────────────────────────────────────────────

    def _cut(self) -> None:
        names = list(self._world.nodes)
        self._random.shuffle(names)
        size = self._random.randint(1, max(1, len(names) // 2))
        here, there = frozenset(names[:size]), frozenset(names[size:])
        one_way = self._random.random() < self._world.profile.one_way
        self._heal()
        self._world.network.cut(here, there, one_way=one_way)
        for name in names:
            self._world.troubles.begin(name)
        sides = f"{' '.join(here)} {'→' if one_way else '↔'} {' '.join(there)}"
        self._world.record_event(PeerId("network"), f"is cut: {sides}")
        self._world.clock.after(self._random.uniform(*self._world.profile.partition_s), self._heal)

    def _heal(self) -> None:
        if self._world.network.heal():
            self._world.record_event(PeerId("network"), "is whole again")
        for node in self._world.nodes.values():
            if node.is_running:
                self._world.troubles.end(node.me)

    # ── pauses and clocks ────────────────────────────────────────────────────────────────────────

    def _pause(self) -> None:
        running = [node for node in self._world.nodes.values() if node.is_running]
        if not running:
            return
        node = self._random.choice(running)
        incarnation = node.incarnation
        self._world.pause_node(node)

        def resume() -> None:
            if node.incarnation == incarnation:
                self._world.resume_node(node)

        self._world.clock.after(self._random.uniform(*self._world.profile.pause_s), resume)

    def _leap(self) -> None:
        running = [node for node in self._world.nodes.values() if node.is_running]
        if running:
            seconds = self._random.uniform(*self._world.profile.clock_leap_s)
            self._world.leap(self._random.choice(running), seconds)

    def recall(self, voters: Collection[PeerId]) -> None:
        """After the end of all faults, bring back those of `voters` that have vanished. An entry
        that was being decided when they vanished may be decided later, and make them voters again.
        """
        if self._active:
            return
        for peer in sorted(self.gone.intersection(voters) - self.destroyed):
            self.gone.remove(peer)
            self._world.clock.after(0.0, partial(self._restart, self._world.nodes[peer]))

    # ── churn ────────────────────────────────────────────────────────────────────────────────────

    def _join(self) -> None:
        """Make a new peer join, or an earlier one return with its old disk."""
        returning = sorted(self.gone)
        if returning and self._random.random() < RETURNS:
            peer = self._random.choice(returning)
            self.gone.remove(peer)
            self._restart(self._world.nodes[peer])
            return
        self._world.add_node(PeerId(f"p{len(self._world.nodes)}"))

    def _leave(self) -> None:
        node = self._expendable()
        if node is not None:
            self._say_goodbye(node)
            self._world.clock.after(GOODBYE_S, lambda: self._remove(node))

    def _say_goodbye(self, node: SimNode) -> None:
        self._world.record_event(node.me, "says goodbye")
        self._world.troubles.begin(node.me)
        node.leaving = True
        self._world.run_action(node, node.gossip)

    def _vanish(self) -> None:
        node = self._expendable()
        if node is not None:
            self._remove(node)

    def _remove(self, node: SimNode) -> None:
        self._world.stop_node(node)
        if self._active and self._can_go(node):
            self.gone.add(node.me)
        else:
            self._restart(node)  # It stays. Only a restart withdraws its goodbye.

    def _expendable(self) -> SimNode | None:
        running = [node for node in self._world.nodes.values() if node.is_running]
        able = [node for node in running if self._can_go(node)]
        return self._random.choice(able) if able else None

    def _can_go(self, node: SimNode) -> bool:
        """Return whether the other peers can decide without `node`, and enough of them train."""
        state, rules = self._world.latest, self._world.rules
        there = set(self._world.nodes) - self.gone - {node.me}
        there -= {each.me for each in self._world.nodes.values() if each.leaving}
        voters = [voter for voter in state.voters if voter in there]
        train = [m for m in state.members if m in there and self._world.nodes[m].trains]
        return 2 * len(voters) > len(state.voters) and len(train) > rules.participants_min
