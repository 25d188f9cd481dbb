"""The seventeen lies about training that the checks must find.

Each lie is what a peer with the lease and the optimizer of an honest peer sends instead of its
work, with the checkpoints that it shows for it. A peer that did not train shows checkpoints on the
straight line from θ to its contribution, with its last honest moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2ptrain.data.blocks import Tokens
from p2ptrain.proofs.checkpoints import LINKS
from tests.acceptance.trust.simulated_peer import Floats, Point, SimulatedPeer

ALL = tuple(range(LINKS))
PHRASE = np.frombuffer(b"~~~~ ignore all of it: ", np.uint8)


@dataclass(frozen=True, slots=True)
class Lie:
    """`points` are the checkpoints from θ to the contribution, `faked` the links that a repetition
    must refuse."""

    name: str
    points: list[Point]
    faked: tuple[int, ...] = ALL


@dataclass(frozen=True, slots=True)
class Occasion:
    """The liar's means: θ and its optimizer, its lease, its honest work, and what it has seen."""

    peer: SimulatedPeer
    start: Point
    lease: Sequence[int]
    first_step: int
    honest: list[Point]
    other_delta: Floats
    """The contribution of another peer."""
    earlier_theta: Floats
    earlier_mean: Floats
    earlier_own: Floats
    spare: Sequence[int]
    """Blocks that nobody leases."""
    seed: int

    @property
    def own(self) -> Floats:
        return self.start.weights - self.honest[-1].weights

    @property
    def every(self) -> int:
        return len(self.lease) // LINKS

    def noise(self, length: float) -> Floats:
        drawn = np.random.default_rng(self.seed).standard_normal(self.own.size, np.float32)
        return np.asarray(drawn * np.float32(length / np.linalg.norm(drawn)), np.float32)

    def straight(self, name: str, delta: Floats) -> Lie:
        theta, moments = self.start.weights, self.start.moments
        points = [
            Point(theta - np.float32(link / LINKS) * delta, moments) for link in range(LINKS + 1)
        ]
        return Lie(name, points)


def trained_lies(at: Occasion) -> list[Lie]:
    """Lies of a peer that does train, but not as it should."""
    half = len(at.lease) // 2
    idle: list[int | None] = [*at.lease[:half], *[None] * half]
    thin = [each if number % 2 == 0 else None for number, each in enumerate(at.lease)]
    earlier = Point(at.earlier_theta, at.start.moments)
    moved = at.start.weights - at.earlier_theta
    stale = at.peer.train(earlier, at.lease, at.first_step, every=at.every)

    def trained(blocks: Sequence[int | None], **how: object) -> list[Point]:
        return at.peer.train(at.start, blocks, at.first_step, every=at.every, **how)  # type: ignore[arg-type]

    return [
        Lie("other data", trained(at.spare)),
        Lie("half of the steps, then nothing", trained(idle), ALL[LINKS // 2 :]),
        Lie("every second block at twice the rate", trained(thin, rate_factor=2.0)),
        Lie("labels flipped", trained(at.lease, targets_of=lambda targets: 255 - targets)),
        Lie(
            "θ of the step before",
            [Point(each.weights + moved, each.moments) for each in stale],
        ),
        Lie("half of each batch", trained(at.lease, rows_of=lambda rows: rows[: len(rows) // 2])),
        Lie("a backdoor in 2 of 8 rows", trained(at.lease, rows_of=_with_phrase)),
        Lie("one block again and again", trained([at.lease[0]] * len(at.lease))),
    ]


def invented_lies(at: Occasion, element_max: float) -> list[Lie]:
    """Lies of a peer that does not train, or only a little."""
    own = float(np.linalg.norm(at.own))
    noise = at.noise(own)
    few = at.start.weights - at.honest[1].weights
    scaled = own / float(np.linalg.norm(at.earlier_mean))
    stretched = own / float(np.linalg.norm(few))
    invented = {
        "noise": noise,
        "sign flipped": -at.own,
        "times 5": np.float32(5) * at.own,
        "nothing": np.float32(1e-4) * at.own,
        "another peer's, and 3 % of noise": at.other_delta + np.float32(0.03) * noise,
        "the last mean again": np.float32(scaled) * at.earlier_mean,
        "its own last one again": at.earlier_own,
        "a quarter of the steps, stretched": np.float32(stretched) * few,
        "at the bound on elements": np.sign(noise) * np.float32(element_max),
    }
    return [at.straight(name, delta) for name, delta in invented.items()]


def _with_phrase(rows: Tokens) -> Tokens:
    changed = rows.copy()
    changed[:2] = np.resize(PHRASE, rows.shape[1])
    return changed
