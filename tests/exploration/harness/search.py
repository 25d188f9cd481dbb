"""Visit every world within a bound in breadth-first order, and stop at the first world that breaks
a rule.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.peer_reports import (
    Joining,
    Ready,
    ReduceDone,
    SnapshotTaken,
    UpdateHeld,
)
from p2ptrain.testing.ledgers import digest, peers, small_rules
from tests.exploration.harness.members import Members, Step

A, B, C = NAMES = peers("a b c")


@dataclass(frozen=True, slots=True)
class Bound:
    """How many round timeouts and how many crashes are allowed, for all members together."""

    timeouts: int
    crashes: int


class World(NamedTuple):
    """The indices of the states of three members, the set of messages ever sent (as a bit mask),
    and how many timeouts and crashes are still allowed.
    """

    a: int
    b: int
    c: int
    said: int
    timeouts: int
    crashes: int

    @property
    def members(self) -> tuple[int, int, int]:
        return self[:3]


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of an exploration.

    `fault` describes the problem in the last world of `story`, which is a shortest sequence of
    steps to a world that breaks a rule.
    """

    bound: Bound
    worlds: int
    members: int
    messages: int
    decided: int
    seconds: float
    finished: bool
    fault: str = ""
    story: tuple[str, ...] = ()

    def text(self) -> str:
        within = f"{self.bound.timeouts} timeouts, {self.bound.crashes} crashes"
        seen = f"{self.worlds:,} worlds ({self.decided:,} with both heights decided)"
        parts = f"{self.members:,} member states, {self.messages:,} messages"
        end = "all visited" if self.finished else "not all visited"
        return f"within {within}: {seen}, {parts}, {self.seconds:.1f} s, {end}"


def reports() -> dict[PeerId, Sequence[Event]]:
    """Return each member's reports from gossip: together they are enough to decide both heights,
    and each member has different reports.

    At height 1, `b` prefers a roster of the three members, while `a` and `c` each know of a
    different newcomer. At height 2, `c` can propose a snapshot. `b` has written that snapshot too,
    but `a` does not know of it.
    """
    update, snapshot = digest("the update"), digest("a snapshot")
    mine, theirs = SnapshotTaken(B, 0, snapshot), SnapshotTaken(C, 0, snapshot)
    ready: list[Event] = [Ready(peer, 0, 200, 2) for peer in NAMES]
    done: list[Event] = [UpdateHeld(update), *(ReduceDone(peer, 0, 0, update) for peer in NAMES)]
    return {
        A: [Joining(PeerId("e")), *done, *ready],
        B: [mine, *done, *ready],
        C: [Joining(PeerId("d")), mine, theirs, *done, *ready],
    }


def explore(bound: Bound, *, witnesses: bool = False, worlds_max: int | None = None) -> Findings:
    """Visit all worlds within `bound`, or the first `worlds_max` in breadth-first order."""
    rules = small_rules("a b c", outer_steps=1, grace_s=1000.0)
    search = Search(Members(rules, reports(), witnesses))
    return search.run(bound, worlds_max)


class Search:
    """The state of one exploration."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._came_from: dict[World, tuple[World | None, str]] = {}
        self._decided = 0

    def run(self, bound: Bound, worlds_max: int | None) -> Findings:
        begun = time.perf_counter()
        queue: deque[World] = deque()
        fault, last = self._begin(bound, queue)
        while queue and not fault and not (worlds_max and len(self._came_from) >= worlds_max):
            world = queue.popleft()
            for step, after in self._steps(world):
                if after in self._came_from:
                    continue
                self._came_from[after] = (world, step.label)
                self._decided += self._is_decided(after)
                fault = self._fault(world, step, after)
                if fault:
                    last = after
                    break
                queue.append(after)
        return Findings(
            bound,
            len(self._came_from),
            len(self._members.members),
            len(self._members.unicasts),
            self._decided,
            time.perf_counter() - begun,
            finished=not queue,
            fault=fault,
            story=tuple(self._story(last)) if fault else (),
        )

    def _begin(self, bound: Bound, queue: deque[World]) -> tuple[str, World]:
        starts = [self._members.start(name) for name in NAMES]
        a, b, c = (step.member for step in starts)
        said = starts[0].said | starts[1].said | starts[2].said
        first = World(a, b, c, said, bound.timeouts, bound.crashes)
        self._came_from[first] = (None, "start")
        queue.append(first)
        return "".join(step.fault for step in starts), first

    def _steps(self, world: World) -> Iterator[tuple[Step, World]]:
        said, timeouts, crashes = world.said, world.timeouts, world.crashes
        for place, number in enumerate(world.members):
            mail = said & self._members.mail_to.get(NAMES[place], 0)
            for step in self._members.on_mail(number, mail):
                yield step, self._moved(world, place, step, timeouts, crashes)
            if timeouts and (late := self._members.on_timeout(number)) is not None:
                yield late, self._moved(world, place, late, timeouts - 1, crashes)
            if crashes:
                for step in self._members.on_crash(number, mail):
                    yield step, self._moved(world, place, step, timeouts, crashes - 1)

    def _fault(self, before: World, step: Step, after: World) -> str:
        said = before.said | step.said
        fresh = said & ~before.said
        while fresh:
            lowest = fresh & -fresh
            fresh ^= lowest
            number = lowest.bit_length() - 1
            if self._members.contraries[number] & said:
                return f"{self._members.unicasts[number].sender} contradicts an earlier statement"
        return step.fault or ("" if before.members == after.members else self._fork(after))

    def _fork(self, world: World) -> str:
        """Return the reason why the chains of these members conflict, or an empty string."""
        chains: list[tuple[Digest, ...]] = [self._members.chains[n] for n in world.members]
        for height in range(max(map(len, chains))):
            if len({chain[height] for chain in chains if len(chain) > height}) > 1:
                return f"two entries are decided at height {height + 1}"
        return ""

    def _is_decided(self, world: World) -> bool:
        return any(self._members.heights[number] >= 2 for number in world.members)

    def _story(self, world: World | None) -> list[str]:
        steps: list[str] = []
        while world is not None:
            world, label = self._came_from[world]
            steps.append(label)
        return steps[::-1]

    def _moved(self, world: World, place: int, step: Step, timeouts: int, crashes: int) -> World:
        a, b, c, said, _, _ = world
        said |= step.said
        if place == 0:
            a = step.member
        elif place == 1:
            b = step.member
        else:
            c = step.member
        heights = self._members.heights
        reached = (heights[a], heights[b], heights[c])
        if any(reached):
            said = self._members.alive(said, reached)
        return World(a, b, c, said, timeouts, crashes)
