"""The choice of learning rates: for ordinary training first, then for DiLoCo with equal effort.

Trials have their own seed and held-out sequences, and half the length of the compared arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from p2ptrain.ipc.trainer_config import ModelSpec
from scripts.research.learning.record import Record
from scripts.research.learning.search import (
    BEYOND_MAX,
    Arm,
    Key,
    Search,
    Stage,
    Tuned,
    best,
    further,
)
from scripts.research.learning.settings import Settings, Start, TextSpec

MODEL = ModelSpec(
    vocab=1024, layers=4, width=128, heads=4, kv_heads=4, ffn=400, sequence=128, qk_norm=True
)
"""A model of 1,009,024 parameters. One core trains them on five tokens per parameter in five
minutes. Without QK norm, seed 2 of the baseline ended 0.06 nats above seed 1, which is more than
the differences measured here."""

TUNED_ON = TextSpec(drawn_sequences=1024, draw=1)
"""Held-out text of the trials, drawn from all documents. Five whole documents, used at first, were
too few: models differ in which of them they predict well."""

START = Start(steps=848, batch_sequences=32, lr=9.52e-3)
"""The common start: two fifths of all steps. By then all seeds have begun to copy (`copying`). The
rate is the best one for ordinary training from its initial weights."""

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
    start=START,
    evaluate_every=120,
    text=TUNED_ON,
)
"""Settings from which all others are derived: 5.21 million tokens, which is 5.2 per parameter, in
106 outer steps of 12 inner steps. 12 is divisible by the number of fragments (four) and by SLOWNESS
(four).

The optimizer is Muon. AdamW with tuned rates reached a loss of 2.31 in twice as many steps of half
the batch, and Muon reached 2.11, both without QK norm. From one peer to four, the loss rose by the
same amount with AdamW and with Muon. Curves have points at steps at which θ has just changed, for
any H."""

TUNING_SEED = 0
SHORTER = 2
"""Factor by which trials have fewer steps than the compared arms, so that twice as many trials are
possible."""

RATES = (8e-3, 16e-3)
"""Inner learning rates of the grid. 8e-3 was near the best from initial weights, for one peer and
for two. The search continues beyond the grid."""
RATE_FACTOR = 2.0
REFINED = (0.7, 1.4)
FINER = (0.84, 1.19)
"""Factors by which the best inner rate of ordinary training is multiplied, after those of
REFINED."""
MOMENTA = (0.0, 0.4)
"""Outer momenta, tried with each of the rates. With 0.9, which suits AdamW here, Muon lost 0.17
nats. Outer rates stay 1, since larger ones did not help."""
MOMENTUM_FACTOR = 1.6
BETWEEN = 0.2
"""An outer momentum between those of the grid, tried with the best settings so far."""

NEAR = 1.4
"""Factor between two tried rates of an arm whose search begins at the rates of another arm."""

BETA = 0.99
"""An alternative β₂. From initial weights and with AdamW, it helped ordinary training more than it
helped four peers."""

LATE_GRID = ((0.0, 0.5), (0.0, 1.0), (0.4, 0.5))
"""Pairs of outer momentum and outer rate for modes in which averages arrive one outer step late.
Values that are stable without a delay can be unstable with one: in directions of high curvature, in
which H inner steps reach the minimum, the oscillation grows."""
LATE_FACTOR = 2.0


def shorter(settings: Settings) -> Settings:
    """Return the shorter trial version of these settings."""
    steps = settings.total_steps // SHORTER
    return replace(settings, total_steps=steps, seed=TUNING_SEED, text=TUNED_ON)


def tuned(found: Tuned) -> Tuned:
    """Return the trials, and their best settings with the full length of a compared arm."""
    trials, chosen = found
    return trials, chosen and replace(chosen, total_steps=chosen.total_steps * SHORTER)


def baseline(records: Mapping[Key, Record], base: Settings = BASE, name: str = "dp") -> Tuned:
    """Tune the learning rate of ordinary training, in ever finer steps."""

    def near(shares: Sequence[float]) -> Stage:
        return lambda at: [_rated(name, at, each * at.lr) for each in shares]

    search = Search(
        lambda rate, _: _rated(name, shorter(base), rate),
        tuple((rate, 0.0) for rate in RATES),
        (RATE_FACTOR, 1.0),
    )
    return tuned(further(search.trials(records), (near(REFINED), near(FINER)), records))


def _rated(name: str, trial: Settings, rate: float) -> Arm:
    return Arm("tuning", f"{name}-lr{rate:g}", replace(trial, lr=rate))


def averaged(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Tune plain DiLoCo: its grid, then a lower inner rate, then a momentum between the grid's."""

    def lower(at: Settings) -> list[Arm]:
        return [_diloco(peers, REFINED[0] * at.lr, at.momentum)]

    def between(at: Settings) -> list[Arm]:
        return [_diloco(peers, at.lr, BETWEEN)]

    return tuned(further(diloco(peers).trials(records), (lower, between), records))


def diloco(peers: int) -> Search:
    """Return the search over inner rates and outer momenta of DiLoCo, for the base's tokens."""
    grid = tuple(product(RATES, MOMENTA))
    return Search(partial(_diloco, peers), grid, (RATE_FACTOR, MOMENTUM_FACTOR))


def _diloco(peers: int, rate: float, momentum: float) -> Arm:
    settings = replace(
        shorter(BASE), peers=peers, averages=True, lr=rate, outer_lr=1.0, momentum=momentum
    )
    return Arm("tuning", f"diloco-{peers}-lr{rate:g}-momentum{momentum:g}", settings)


def twice_the_batch(settings: Settings) -> Settings:
    """Return settings with twice the batch, and outer steps of half the length."""
    return replace(
        settings,
        batch_sequences=2 * settings.batch_sequences,
        total_steps=settings.total_steps // 2,
        inner_steps=settings.inner_steps // 2,
    )


def rated(name: str, settings: Settings, share: float) -> Search:
    """Return a search over inner rates. It begins with the rate of `settings` and `share` of it."""
    trial = shorter(settings)
    grid = tuple((each * settings.lr, 0.0) for each in (1.0, share))
    return Search(lambda rate, _: _rated(name, trial, rate), grid, (NEAR, 1.0))


def longer(name: str, settings: Settings, records: Mapping[Key, Record]) -> Tuned:
    """Tune settings whose rates were tuned for a similar mode: a shorter H, or no fragments.

    Try these rates, and lower each of the three once. Lower the inner rate further while that is
    better.
    """
    first = shorter(settings)

    def arm(**changes: float) -> Arm:
        at = replace(first, **changes)  # type: ignore[arg-type]  # These are all floats.
        rates = f"lr{at.lr:.3g}-momentum{at.momentum:g}-outer{at.outer_lr:g}"
        return Arm("tuning", f"{name}-{rates}", at)

    def lower(at: Settings) -> list[Arm]:
        if at.lr == first.lr:
            return []
        return [arm(lr=at.lr / NEAR, momentum=at.momentum, outer_lr=at.outer_lr)]

    trials = [arm(), arm(lr=first.lr / NEAR), arm(momentum=0.0)]
    trials.append(arm(outer_lr=first.outer_lr / LATE_FACTOR))
    return tuned(further((trials, best(trials, records)), [lower] * BEYOND_MAX, records))


def other_beta(chosen: Mapping[str, Settings]) -> list[Arm]:
    """Return trials of BETA with the chosen rates. They do not affect the choice."""
    return [
        Arm("tuning", f"{name}-beta{BETA:g}", replace(shorter(each), beta2=BETA))
        for name, each in chosen.items()
    ]


def late(name: str, base: Settings) -> Search:
    """Return the search over outer momentum and outer rate of a mode with late averages."""
    return Search(partial(_late, name, shorter(base)), LATE_GRID, (1.0, LATE_FACTOR))


def _late(name: str, trial: Settings, momentum: float, outer: float) -> Arm:
    settings = replace(trial, momentum=momentum, outer_lr=outer)
    return Arm("tuning", f"{name}-momentum{momentum:g}-outer{outer:g}", settings)
