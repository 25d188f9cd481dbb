"""Search for learning rates in a grid, and beyond its edge while the best value lies there.

A best value at the edge of a grid is not a tuned value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.research.learning.record import Record
from scripts.research.learning.settings import Settings

BEYOND_MAX = 6
"""Maximum number of trials beyond a grid. All rates in use are closer to their grid than that."""

Tuned = tuple[list["Arm"], Settings | None]
"""All trials of a search that are known to be needed, and its best settings once all have ended."""

Key = tuple[str, int, str]
"""An arm's name, its seed, and the digest of its settings."""

Point = tuple[float, float]

Stage = Callable[[Settings], list["Arm"]]
"""A function `stage(best)` that returns the next trials, around the best settings so far."""


@dataclass(frozen=True, slots=True)
class Arm:
    comparison: str
    name: str
    settings: Settings

    @property
    def key(self) -> Key:
        return self.name, self.settings.seed, self.settings.digest

    @property
    def folder(self) -> str:
        return f"{self.name}-seed{self.settings.seed}"


@dataclass(frozen=True, slots=True)
class Search:
    """A grid over two numbers. `factors` are the steps beyond its edges; 1 means no step."""

    make: Callable[[float, float], Arm]
    grid: tuple[Point, ...]
    factors: Point

    def trials(self, records: Mapping[Key, Record]) -> Tuned:
        points = list(self.grid)
        for _ in range(BEYOND_MAX):
            if (chosen := self._best(points, records)) is None:
                return self._arms(points), None
            if (beyond := self._beyond(points, chosen)) is None:
                break
            points.append(beyond)
        found = self._arms(points)
        return found, best(found, records)

    def _arms(self, points: Sequence[Point]) -> list[Arm]:
        return [self.make(*point) for point in points]

    def _best(self, points: Sequence[Point], records: Mapping[Key, Record]) -> Point | None:
        settings = best(self._arms(points), records)
        return next((each for each in points if self.make(*each).settings == settings), None)

    def _beyond(self, points: Sequence[Point], at: Point) -> Point | None:
        """Return the next untried point beyond `at`, if `at` lies on an edge, else None."""
        firsts = [first for first, other in points if other == at[1]]
        others = [other for first, other in points if first == at[0]]
        candidates = [(first, at[1]) for first in _next(firsts, at[0], self.factors[0])]
        candidates += [(at[0], other) for other in _next(others, at[1], self.factors[1])]
        return next((each for each in candidates if each not in points), None)


def _next(values: Sequence[float], at: float, factor: float) -> list[float]:
    if factor == 1:
        return []
    return [at * factor] * (at == max(values)) + [at / factor] * (at == min(values))


def best(trials: Sequence[Arm], records: Mapping[Key, Record]) -> Settings | None:
    """Return the settings with the lowest loss.

    Return None if a trial has not ended, or if all trials have diverged.
    """
    losses = []
    for arm in trials:
        record = records.get(arm.key)
        if record is None:
            return None
        if record.loss is not None:
            losses.append((record.loss, arm.name, arm.settings))
    return min(losses, key=lambda each: each[:2])[2] if losses else None


def further(found: Tuned, stages: Sequence[Stage], records: Mapping[Key, Record]) -> Tuned:
    """Run further stages. Each one makes its trials from the best settings found before it."""
    trials, chosen = found
    for stage in stages:
        if chosen is None:
            break
        trials = trials + [arm for arm in stage(chosen) if arm not in trials]
        chosen = best(trials, records)
    return trials, chosen
