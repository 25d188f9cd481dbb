"""How the rates are chosen: the data-parallel baseline's first, and DiLoCo's with as many trials.

A search tries a grid. While the best lies on its edge, it tries the next value beyond: what is best
of a grid that ends too early is tuned in name only. Trials have a seed of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.testing.learning.settings import Settings, TextSpec
from p2ptrain.testing.learning.trial import Record

MODEL = ModelSpec(
    vocab=1024, layers=4, width=128, heads=4, kv_heads=4, ffn=400, sequence=128, qk_norm=True
)
"""1,009,024 parameters: what a core trains on five tokens each in five minutes. Without QK norm
the baseline's seed 2 ended 0.06 nats above seed 1, and what is compared here is less than that."""

TUNED_ON = TextSpec(drawn_sequences=1024, draw=1)
"""Rates were tuned on five whole documents first, of which no two models think alike."""

BASE = Settings(
    MODEL,
    peers=1,
    inner_steps=12,
    total_steps=1272,
    batch_sequences=32,
    lr=8e-3,
    averages=False,
    optimizer="muon",
    warmup_steps=50,
    compiled=True,
    evaluate_every=120,
    text=TUNED_ON,
)
"""5.21 million tokens, 5.2 for each parameter; 106 outer steps of 12 inner steps, which four
fragments divide, and a peer of a quarter of the speed. Muon: AdamW with tuned rates came to 2.31 in
twice as many steps of half the batch, Muon to 2.11, both without QK norm; four peers lost as much
with either. Curves are drawn of steps at which θ has just moved, whatever H."""

TUNING_SEED = 0
RATES = (8e-3, 16e-3)
"""8e-3 was the best for one peer and for several before there was QK norm, which stands more; they
go on beyond."""
RATE_FACTOR = 2.0
BATCHES = (32.0, 64.0)
"""Smaller ones would be other comparisons: more steps than DiLoCo has."""
MOMENTA = (0.0, 0.4)
"""The outer ones, with each of the rates: as many trials as the baseline has with its batches. With
0.9, which suits AdamW here, Muon's steps lost 0.17 nats."""
MOMENTUM_FACTOR = 1.6
OUTER_LR = 1.0
"""Of the mean, in the first grid."""
GAINS = (1.3, 1.6)
"""Then outer rates over 1: Muon's step has one length, so four peers' mean of it is 0.6 as long as
one peer's that trains on all, and only the outer rate lengthens the mean and nothing else. With 0.7
of the inner rate 1.6 was worse by far."""
REFINED = (0.7, 1.4)
FINER = (0.84, 1.19)
"""Of the inner rate that is best so far, for the baseline and for two peers."""
BETWEEN = 48.0
BETWEEN_RATES = (1.2, 1.5)
"""For the baseline a batch between, too, its rate larger as the batch's root or as the batch."""
BETWEEN_MOMENTA = (0.6, 1.3)
"""And momenta for two peers. So each has twelve trials, as four peers have with their gains: the
baseline with the one that twice the batch takes it to."""

LATE_GRID = ((0.0, 0.5), (0.0, 1.0), (0.4, 0.5))
"""Momentum and outer rate where means come an outer step late. What is stable without a delay need
not be with one: sharp directions, in which H inner steps go all the way, swing ever wider."""
LATE_FACTOR = 2.0

BEYOND_MAX = 6
"""Trials beyond a grid: rates that are still best there are further off than any that were used."""

Tuned = tuple[list["Arm"], Settings | None]
"""All trials of a search that are known to be needed, and, once they have ended, its best."""

Key = tuple[str, int, str]
"""An arm's name, its seed, and the digest of its settings."""

Point = tuple[float, float]

Stage = Callable[[Settings], list["Arm"]]
"""What is tried next around the best."""


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
    """A grid over two numbers; `factors` lead beyond it, 1 if nothing does."""

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
        """The next point on a line through `at` that ends there."""
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
    """The settings with the lowest loss, once all trials have one; who diverged has lost. None as
    well if all have diverged.
    """
    losses = []
    for arm in trials:
        record = records.get(arm.key)
        if record is None:
            return None
        if record.loss is not None:
            losses.append((record.loss, arm.name, arm.settings))
    return min(losses, key=lambda each: each[:2])[2] if losses else None


def baseline(batches: Sequence[float] = BATCHES) -> Search:
    """Rates and batches of ordinary training; the tokens are the same."""
    return Search(_baseline, tuple(product(RATES, batches)), (RATE_FACTOR, 1.0))


def refined(records: Mapping[Key, Record]) -> Tuned:
    """The baseline, tuned further around what is best."""

    def near(shares: Sequence[float], batch: float | None = None) -> Stage:
        return lambda at: [_baseline(each * at.lr, batch or at.batch_sequences) for each in shares]

    stages = (near(REFINED), near(FINER), near(BETWEEN_RATES, BETWEEN))
    return _further(baseline().trials(records), stages, records)


def _further(found: Tuned, stages: Sequence[Stage], records: Mapping[Key, Record]) -> Tuned:
    """Each stage's trials are made of the best of all before them."""
    trials, chosen = found
    for stage in stages:
        if chosen is None:
            break
        trials = trials + [arm for arm in stage(chosen) if arm not in trials]
        chosen = best(trials, records)
    return trials, chosen


def _baseline(rate: float, batch: float) -> Arm:
    sequences = int(batch)
    steps = BASE.total_steps * BASE.batch_sequences // sequences
    settings = replace(
        BASE,
        lr=rate,
        batch_sequences=sequences,
        total_steps=steps,
        inner_steps=math.gcd(steps, BASE.inner_steps),  # Of a lease; it averages with nobody.
        seed=TUNING_SEED,
    )
    return Arm("tuning", f"dp-b{sequences}-lr{rate:g}", settings)


def diloco(peers: int) -> Search:
    """Inner rates and outer momenta of plain DiLoCo, with the steps and tokens of the base."""
    grid = tuple(product(RATES, MOMENTA))
    return Search(partial(_diloco, peers), grid, (RATE_FACTOR, MOMENTUM_FACTOR))


def gained(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain DiLoCo, with larger outer rates for what is best with an outer rate of 1."""

    def gains(at: Settings) -> list[Arm]:
        name = f"diloco-{peers}-lr{at.lr:g}-momentum{at.momentum:g}-outer"
        return [Arm("tuning", f"{name}{gain:g}", replace(at, outer_lr=gain)) for gain in GAINS]

    return _further(diloco(peers).trials(records), (gains,), records)


def balanced(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain DiLoCo, its inner rate and outer momentum tuned further around what is best."""

    def rates(shares: Sequence[float]) -> Stage:
        return lambda at: [_diloco(peers, each * at.lr, at.momentum) for each in shares]

    def momenta(at: Settings) -> list[Arm]:
        return [_diloco(peers, at.lr, each * at.momentum) for each in BETWEEN_MOMENTA]

    return _further(diloco(peers).trials(records), (rates(REFINED), rates(FINER), momenta), records)


def averaged(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain averaging, without an outer optimizer: the grid's inner rates, and one between.

    Not beyond them: with momentum rates half as large were far worse.
    """
    rates = (RATES[0], REFINED[-1] * RATES[0], RATES[1])
    grid = tuple((rate, 0.0) for rate in rates)
    return Search(partial(_diloco, peers), grid, (1.0, 1.0)).trials(records)


def _diloco(peers: int, rate: float, momentum: float) -> Arm:
    settings = replace(
        BASE,
        peers=peers,
        averages=True,
        lr=rate,
        outer_lr=OUTER_LR,
        momentum=momentum,
        seed=TUNING_SEED,
    )
    return Arm("tuning", f"diloco-{peers}-lr{rate:g}-momentum{momentum:g}", settings)


def wide(four: Settings) -> Search:
    """Inner rates of four peers with twice the batch, in as many outer steps of half the length."""
    twice = replace(
        four,
        batch_sequences=2 * four.batch_sequences,
        total_steps=four.total_steps // 2,
        inner_steps=four.inner_steps // 2,
        seed=TUNING_SEED,
    )
    grid = tuple((share * four.lr, 0.0) for share in (1.0, RATE_FACTOR))
    return Search(partial(_wide, twice), grid, (RATE_FACTOR, 1.0))


def _wide(base: Settings, rate: float, _: float) -> Arm:
    return Arm("tuning", f"diloco-{base.peers}-wide-lr{rate:g}", replace(base, lr=rate))


def late(name: str, base: Settings) -> Search:
    """Momentum and outer rate of a mode whose means come late; the rest is `base`'s."""
    return Search(partial(_late, name, base), LATE_GRID, (1.0, LATE_FACTOR))


def _late(name: str, base: Settings, momentum: float, outer: float) -> Arm:
    settings = replace(base, momentum=momentum, outer_lr=outer, seed=TUNING_SEED)
    return Arm("tuning", f"{name}-momentum{momentum:g}-outer{outer:g}", settings)
