"""A simulated organiser of an open run who delegates votes, and whose own machines then disappear.

Volunteers join at the start. Once most of them have taken part in a committed update, the organiser
delegates votes to all of them, and later revokes the vote of one. Then the founders' machines are
destroyed one after another; in some runs the first of them even earlier. Each founder goes only
when the one before it has been replaced, since a run that loses its quorum has to stop and would
not test anything. Some founders come back after they were replaced. In the end a new volunteer
joins a run without founders. In some runs the organiser then makes a mistake: it revokes all votes.
In some runs delegates are lost for good as well, until two of three voters are left. In half of the
runs, one delegate lies.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.simulation.checkers.proposals import is_quorum
from p2ptrain.simulation.profiles import Profile

if TYPE_CHECKING:
    from p2ptrain.simulation.world import SimWorld

LOOKS_S = 0.5
"""Time between two looks at the run, in seconds."""

COME_S = 3.0
NAMED_MIN = 4
"""The organiser delegates votes when this many volunteers have contributed."""

EARLY = 0.3
"""Probability that a founder is lost before the organiser has delegated any vote."""

REVOKES = 0.7
LOST_S = (1.0, 6.0)
COMES_BACK = 0.2
ERRS = 0.3
DELEGATES_GO = 0.5
NEWCOMER = PeerId("late")


def volunteers_of(profile: Profile) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"d{number}") for number in range(profile.delegates))


def lying_volunteers(random: Random, volunteers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    """Return the volunteers that lie: one of them in half of the runs."""
    return volunteers[-1:] if volunteers and random.random() < 0.5 else ()


class Delegating:
    """The organiser. It draws from its own random generator, as `Amending` does. `ended_s` is the
    time at which the last founder was replaced; None before that."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._random = Random(f"{world.profile.name}/{world.rules.run}/delegating")
        self._wanted: tuple[PeerId, ...] = ()
        self._awaited_step = 0
        self._may_revoke = self._random.random() < REVOKES
        self._lost: PeerId | None = None
        self._returning: PeerId | None = None
        self._delegates_go = self._random.random() < DELEGATES_GO
        self.ended_s: float | None = None
        if world.volunteers:
            for name in world.volunteers:
                at = self._random.uniform(0.0, COME_S)
                world.clock.at(at, partial(world.add_node, name))
            if self._random.random() < EARLY:
                world.clock.after(self._random.uniform(*LOST_S), self._lose_one)
            world.clock.after(COME_S, self._look)

    @property
    def named(self) -> tuple[PeerId, ...]:
        """The delegates in force or agreed, as far as the furthest node knows."""
        lists = [each.voters for each in self._world.latest.terms if each.voters is not None]
        return lists[-1] if lists else ()

    def _look(self) -> None:
        """Do the next thing that the organiser, or fate, has planned, if it is time for it."""
        self._world.clock.after(LOOKS_S, self._look)
        if self._wanted != self.named:
            if self._world.latest.step >= self._awaited_step:  # It came too late: publish it again.
                self._publish(self._wanted)
        elif not self._wanted:
            self._name()
        elif not set(self._wanted) <= set(self._world.latest.voters):
            self._lose_founders()
        elif self._may_revoke:
            self._revoke()
        else:
            self._lose_founders()

    def _publish(self, voters: tuple[PeerId, ...]) -> None:
        self._wanted = voters
        terms = self._world.amending.delegate(voters)
        if terms is not None:
            self._awaited_step = terms.step

    def _name(self) -> None:
        world = self._world
        known = [it for it in world.volunteers if it in world.latest.tokens_by_peer]
        if len(known) >= NAMED_MIN:
            self._publish(world.volunteers)

    def _revoke(self) -> None:
        """Revoke the vote of one delegate. An honest organiser does not know which one lies."""
        self._may_revoke = False
        gone = self._random.choice(self._wanted)
        self._publish(tuple(name for name in self._wanted if name != gone))

    def _lose_founders(self) -> None:
        """Destroy the next founder if the one before it has been replaced, and the others can
        decide. Bring some of them back after they were replaced."""
        world, voters = self._world, self._world.latest.voters
        if self._lost in voters or (self._returning is not None and self._returning not in voters):
            return
        self._returning = None
        lost, self._lost = self._lost, None
        if lost is not None and self._random.random() < COMES_BACK:
            self._returning = lost
            world.faults.repair(world.nodes[lost])
            return
        if self._founders:
            self._lose_one()
        elif self.ended_s is None:
            self._end()
        elif self._delegates_go:
            self._lose_delegate()

    @property
    def _founders(self) -> list[PeerId]:
        destroyed = self._world.faults.destroyed
        return [it for it in self._world.rules.founders if it not in destroyed]

    def _lose_one(self) -> None:
        world, voters = self._world, self._world.latest.voters
        founder = self._random.choice(self._founders)
        if founder not in voters or self._is_dispensable(founder):
            self._lost = founder
            world.faults.destroy(world.nodes[founder])

    def _lose_delegate(self) -> None:
        """Destroy a delegate, if the others can decide. The third voter from the end is the last to
        go, since it is not replaced."""
        world = self._world
        honest = [it for it in world.latest.voters if it not in world.liars]
        delegate = self._random.choice(honest)
        if self._is_dispensable(delegate):
            self._lost = delegate
            world.faults.destroy(world.nodes[delegate])

    def _is_dispensable(self, voter: PeerId) -> bool:
        """Return whether the honest voters that are up stay a quorum without `voter`."""
        world, voters = self._world, self._world.latest.voters
        up = {it for it in voters if world.nodes[it].is_running and it not in world.liars}
        return is_quorum(world.rules, voters, up - {voter})

    def _end(self) -> None:
        """The last founder has been replaced. A volunteer joins; the organiser may err."""
        self.ended_s = self._world.clock.now
        self._world.add_node(NEWCOMER)
        if self._random.random() < ERRS:
            self._world.amending.delegate(())
