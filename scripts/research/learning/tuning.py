"""How the rates are chosen: those of ordinary training first, and DiLoCo's with as many trials.

Trials have a seed and held-out sequences of their own, and half the length of what is compared.
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
"""1,009,024 parameters: what a core trains on five tokens each in five minutes. Without QK norm
the baseline's seed 2 ended 0.06 nats above seed 1, and what is compared here is less than that."""

TUNED_ON = TextSpec(drawn_sequences=1024, draw=1)
"""Rates were tuned on five whole documents first, of which no two models think alike."""

START = Start(steps=848, batch_sequences=32, lr=9.52e-3)
"""Two fifths of all steps, by when seeds have begun to copy (`copying`); the rate is the best that
ordinary training from its first weights had."""

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
"""5.21 million tokens, 5.2 for each parameter; 106 outer steps of 12 inner steps, which four
fragments divide, and a peer of a quarter of the speed. Muon: AdamW with tuned rates came to 2.31 in
twice as many steps of half the batch, Muon to 2.11, both without QK norm; four peers lost as much
with either. Curves are drawn of steps at which θ has just moved, whatever H."""

TUNING_SEED = 0
SHORTER = 2
"""Trials have so many times fewer steps: there can be twice as many of them."""

RATES = (8e-3, 16e-3)
"""8e-3 was near the best from first weights, for one peer and for two; they go on beyond."""
RATE_FACTOR = 2.0
REFINED = (0.7, 1.4)
FINER = (0.84, 1.19)
"""Of ordinary training's inner rate that is best so far."""
MOMENTA = (0.0, 0.4)
"""The outer ones, with each of the rates. With 0.9, which suits AdamW here, Muon's steps lost 0.17
nats. Outer rates stay 1: over 1 they were no gain."""
MOMENTUM_FACTOR = 1.6
BETWEEN = 0.2
"""And an outer momentum between, for what is best so far."""

NEAR = 1.4
"""Between the rates that are tried of what rests on other rates, up and down from those."""

BETA = 0.99
"""From first weights and with AdamW alone it helped ordinary training more than four peers."""

LATE_GRID = ((0.0, 0.5), (0.0, 1.0), (0.4, 0.5))
"""Momentum and outer rate where means come an outer step late. What is stable without a delay need
not be with one: sharp directions, in which H inner steps go all the way, swing ever wider."""
LATE_FACTOR = 2.0


def shorter(settings: Settings) -> Settings:
    """What is tried of these settings."""
    steps = settings.total_steps // SHORTER
    return replace(settings, total_steps=steps, seed=TUNING_SEED, text=TUNED_ON)


def tuned(found: Tuned) -> Tuned:
    """The best of its trials at the length of what is compared."""
    trials, chosen = found
    return trials, chosen and replace(chosen, total_steps=chosen.total_steps * SHORTER)


def baseline(records: Mapping[Key, Record], base: Settings = BASE, name: str = "dp") -> Tuned:
    """Rates of ordinary training, ever nearer to what is best."""

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
    """Plain DiLoCo: a rate below the best of its grid, then a momentum between."""

    def lower(at: Settings) -> list[Arm]:
        return [_diloco(peers, REFINED[0] * at.lr, at.momentum)]

    def between(at: Settings) -> list[Arm]:
        return [_diloco(peers, at.lr, BETWEEN)]

    return tuned(further(diloco(peers).trials(records), (lower, between), records))


def diloco(peers: int) -> Search:
    """Inner rates and outer momenta of plain DiLoCo, with the steps and tokens of the base."""
    grid = tuple(product(RATES, MOMENTA))
    return Search(partial(_diloco, peers), grid, (RATE_FACTOR, MOMENTUM_FACTOR))


def _diloco(peers: int, rate: float, momentum: float) -> Arm:
    settings = replace(
        shorter(BASE), peers=peers, averages=True, lr=rate, outer_lr=1.0, momentum=momentum
    )
    return Arm("tuning", f"diloco-{peers}-lr{rate:g}-momentum{momentum:g}", settings)


def twice_the_batch(settings: Settings) -> Settings:
    """As many tokens and outer steps, of half the length."""
    return replace(
        settings,
        batch_sequences=2 * settings.batch_sequences,
        total_steps=settings.total_steps // 2,
        inner_steps=settings.inner_steps // 2,
    )


def rated(name: str, settings: Settings, share: float) -> Search:
    """Inner rates from those that `settings` have: theirs, `share` of it, and on from there."""
    trial = shorter(settings)
    grid = tuple((each * settings.lr, 0.0) for each in (1.0, share))
    return Search(lambda rate, _: _rated(name, trial, rate), grid, (NEAR, 1.0))


def longer(name: str, settings: Settings, records: Mapping[Key, Record]) -> Tuned:
    """From rates that were tuned for something near, a shorter H or no fragments: theirs, and each
    of the three lowered; the inner one further as long as that is better.
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
    """What another second β does to the rates that were chosen: looked at, and not chosen by."""
    return [
        Arm("tuning", f"{name}-beta{BETA:g}", replace(shorter(each), beta2=BETA))
        for name, each in chosen.items()
    ]


def late(name: str, base: Settings) -> Search:
    """Momentum and outer rate of a mode whose means come late; the rest is `base`'s."""
    return Search(partial(_late, name, shorter(base)), LATE_GRID, (1.0, LATE_FACTOR))


def _late(name: str, trial: Settings, momentum: float, outer: float) -> Arm:
    settings = replace(trial, momentum=momentum, outer_lr=outer)
    return Arm("tuning", f"{name}-momentum{momentum:g}-outer{outer:g}", settings)
