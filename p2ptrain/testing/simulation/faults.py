"""What goes wrong, and when: plans crashes, cuts, joins and leaves by a profile's rates, from one
seed.

A run whose majority is gone for ever must stand still, and that would show nothing. So peers vanish
only while those who stay could decide, and vanished voters return at the end: a roster that was
under way when they vanished may have made them needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.testing.simulation.node import SimNode

if TYPE_CHECKING:
    from p2ptrain.testing.simulation.world import SimWorld

GOODBYE_S = 6.0
"""How long a leaving node stays to vote for the roster without it."""


class Faults:
    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._random = world.random
        self._active = True
        self._gone: set[PeerId] = set()
        profile = world.profile
        self._plan(profile.crash_every_s, self._crash)
        self._plan(profile.partition_every_s, self._cut)
        self._plan(profile.join_every_s, self._join)
        self._plan(profile.leave_every_s, self._leave)
        self._plan(profile.vanish_every_s, self._vanish)
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
        """From now on nothing fails any more, and who is only down for a while is back."""
        self._active = False
        self._world.network.faulty = self._world.rings.faulty = False
        self._world.network.heal()
        self._gone.difference_update(self._world.latest.voters)
        for node in list(self._world.nodes.values()):
            self._restart(node)

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────

    def _crash(self) -> None:
        alive = [node for node in self._world.nodes.values() if node.alive]
        if alive:
            self._crash_node(self._random.choice(alive))

    def _crash_node(self, node: SimNode) -> None:
        self._world.stop_node(node)
        down_s = self._random.uniform(*self._world.profile.down_s)
        self._world.clock.after(down_s, lambda: self._restart(node))

    def _restart(self, node: SimNode) -> None:
        if not node.alive and node.me not in self._gone:
            node.leaving = False
            self._world.restart_node(node)

    def crashes_now(self, node: SimNode) -> bool:
        """Between two effects: what was not yet done never happens."""
        chance = self._world.profile.crash_in_effects
        if not self._active or not chance or self._random.random() >= chance:
            return False
        self._crash_node(node)
        return True

    # ── partitions ───────────────────────────────────────────────────────────────────────────────

    def _cut(self) -> None:
        names = list(self._world.nodes)
        self._random.shuffle(names)
        size = self._random.randint(1, max(1, len(names) // 2))
        here, there = frozenset(names[:size]), frozenset(names[size:])
        one_way = self._random.random() < self._world.profile.one_way
        self._world.network.heal()
        self._world.network.cut(here, there, one_way=one_way)
        self._world.clock.after(
            self._random.uniform(*self._world.profile.partition_s), self._world.network.heal
        )

    # ── churn ────────────────────────────────────────────────────────────────────────────────────

    def _join(self) -> None:
        self._world.add_node(PeerId(f"p{len(self._world.nodes)}"))

    def _leave(self) -> None:
        node = self._expendable()
        if node is not None:
            node.leaving = True
            self._world.let(node, node.gossip)
            self._world.clock.after(GOODBYE_S, lambda: self._remove(node))

    def _vanish(self) -> None:
        node = self._expendable()
        if node is not None:
            self._remove(node)

    def _remove(self, node: SimNode) -> None:
        if self._can_go(node):
            self._gone.add(node.me)
            self._world.stop_node(node)
        else:
            node.leaving = False

    def _expendable(self) -> SimNode | None:
        able = [node for node in self._world.nodes.values() if node.alive and self._can_go(node)]
        return self._random.choice(able) if able else None

    def _can_go(self, node: SimNode) -> bool:
        """Whether those who will be there for ever can decide without it, and have enough to
        train.
        """
        state, rules = self._world.latest, self._world.rules
        there = set(self._world.nodes) - self._gone - {node.me}
        there -= {each.me for each in self._world.nodes.values() if each.leaving}
        voters = [voter for voter in state.voters if voter in there]
        train = [m for m in state.members if m in there and self._world.nodes[m].trains]
        return 2 * len(voters) > len(state.voters) and len(train) > rules.participants_min
