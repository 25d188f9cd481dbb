"""The expected answers of a trainer, computed in the simplest way: there is a list of trained
blocks for each fragment. Training on a block subtracts a fixed vector, the block's trace, from the
weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2ptrain.ipc import frames
from p2ptrain.ipc.frames import Frame
from p2ptrain.sync.fragments import Fragment

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Offered:
    """The expected contents of a report."""

    step: int
    paths: tuple[str, ...]
    within: tuple[str, ...]
    """Blocks whose traces are in the weights of the fragment of `step`, but not yet in its θ."""
    weights: Vector
    """The weights in the fragment of `step`; zeros elsewhere."""


@dataclass
class Ought:
    """A model of the trainer. It needs every order that was carried out, with θ at that time, and
    every block trained."""

    fragments: tuple[Fragment, ...]
    mixing: float
    delayed: bool
    traces: dict[str, Vector]
    theta: Vector
    away: Vector = field(init=False)
    """The weights that are offered next, minus θ."""
    trained: list[str] = field(init=False)
    within: list[list[str]] = field(init=False)
    queue: list[str] = field(default_factory=list)
    step: int = 0
    offered: int = 0
    ahead: bool = False
    ready: bool = False

    def load(self, theta: Vector, step: int) -> None:
        self.theta, self.away = theta.copy(), np.zeros_like(theta)
        self.trained, self.within = [], [[] for _ in self.fragments]
        self.queue, self.step, self.offered, self.ready, self.ahead = [], step, 0, False, False

    def obey(self, frame: Frame, theta: Vector) -> Offered | None:
        match frame:
            case frames.Load(step):
                self.load(theta, step)
            case frames.Train(step, paths, _, ahead):
                self.queue.extend(paths)
                self.step, self.ahead, self.ready = step, ahead, False
                return self.report()
            case frames.Merge(step):
                self.merge(theta, step)
            case frames.Rebase(step):
                self.theta, self.step = theta.copy(), step
                return self.report() if self.ready else None
        return None

    def inner_step(self) -> Offered | None:
        path = self.queue.pop(0)
        self.away -= self.traces[path]
        for each in (self.trained, *self.within):
            each.append(path)
        return self.report()

    def report(self) -> Offered | None:
        if self.queue or self.ahead:
            return None
        self.ready, self.offered = True, len(self.trained)
        number = self.step % len(self.fragments)
        weights = np.zeros_like(self.theta)
        for start, stop in self.fragments[number].ranges:
            weights[start:stop] = (self.theta + self.away)[start:stop]
        within = tuple(self.within[number])
        if self.mixing == 0:
            work = sum((self.traces[path] for path in within), np.zeros_like(weights))
            for start, stop in self.fragments[number].ranges:
                np.testing.assert_allclose(self.away[start:stop], -work[start:stop])
        return Offered(self.step, tuple(self.trained), within, weights)

    def merge(self, theta: Vector, step: int) -> None:
        """Account for a merge. With delayed averaging, exactly the offered blocks are now in θ.
        Otherwise all work in the fragment of the step counts as contained in θ."""
        if self.delayed:
            taken = self.trained[: self.offered]
            self.away += sum((self.traces[path] for path in taken), np.zeros_like(theta))
            self.within = [each[self.offered :] for each in self.within]
        else:
            number = self.step % len(self.fragments)
            for start, stop in self.fragments[number].ranges:
                way = theta[start:stop] - self.theta[start:stop]
                self.away[start:stop] = self.mixing * (self.away[start:stop] - way)
            self.within[number] = []
        del self.trained[: self.offered]
        self.theta, self.step, self.offered, self.ready = theta.copy(), step, 0, False
