"""Peers compared from their first weights on, without a common start: what was compared first.

Its seeds differ by when they learn to copy (`copying`) more than codecs or modes may differ, so all
but peers are compared after a start. These searches are finer than those there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from scripts.research.learning.record import Record
from scripts.research.learning.search import Arm, Key, Search, Stage, Tuned, further
from scripts.research.learning.settings import Settings
from scripts.research.learning.tuning import (
    BASE,
    FINER,
    MOMENTA,
    MOMENTUM_FACTOR,
    RATE_FACTOR,
    RATES,
    REFINED,
    TUNING_SEED,
)

SCRATCH = replace(BASE, start=None)

BATCHES = (32.0, 64.0)
"""Smaller ones would be other comparisons: more steps than DiLoCo has."""
GAINS = (1.3, 1.6)
"""Outer rates over 1: Muon's step has one length, so four peers' mean of it is 0.6 as long as one
peer's that trains on all, and only the outer rate lengthens the mean and nothing else. With 0.7 of
the inner rate 1.6 was worse by far."""
BETWEEN = 48.0
BETWEEN_RATES = (1.2, 1.5)
"""For the baseline a batch between, too, its rate larger as the batch's root or as the batch."""
BETWEEN_MOMENTA = (0.6, 1.3)
"""And momenta for two peers. So each has twelve trials, as four peers have with their gains: the
baseline with the one that twice the batch takes it to."""


TRIED: Mapping[str, int] = {"mean-2": 1, "diloco-2-h6": 2, "fp16": 1, "int8": 1}
"""Of what was tried beside the peers, so many seeds."""


def scratch(records: Mapping[Key, Record], seeds: Sequence[int]) -> tuple[list[Arm], list[Arm]]:
    """The trials, and what rests on them, as far as it can be named."""
    trials: list[Arm] = []
    chosen: dict[str, Settings] = {}
    for name, (tried, best) in {
        "dp": refined(records),
        "diloco-2": balanced(2, records),
        "diloco-4": gained(4, records),
        "mean-2": averaged(2, records),
    }.items():
        trials += tried
        chosen |= {name: best} if best else {}
    compared = [
        Arm("scratch", f"scratch-{name}", replace(each, seed=seed))
        for name, each in _beside(chosen)
        for seed in seeds[: TRIED.get(name)]
    ]
    return trials, compared


def _beside(chosen: Mapping[str, Settings]) -> Iterator[tuple[str, Settings]]:
    yield from chosen.items()
    if "diloco-2" in chosen:
        yield "diloco-2-h6", replace(chosen["diloco-2"], inner_steps=6)
    if "diloco-4" in chosen:
        yield "fp16", replace(chosen["diloco-4"], codec="fp16")
        yield "int8", replace(chosen["diloco-4"], codec="int8")


def baseline() -> Search:
    """Rates and batches of ordinary training; the tokens are the same."""
    return Search(_baseline, tuple(product(RATES, BATCHES)), (RATE_FACTOR, 1.0))


def refined(records: Mapping[Key, Record]) -> Tuned:
    """The baseline, tuned further around what is best."""

    def near(shares: Sequence[float], batch: float | None = None) -> Stage:
        return lambda at: [_baseline(each * at.lr, batch or at.batch_sequences) for each in shares]

    stages = (near(REFINED), near(FINER), near(BETWEEN_RATES, BETWEEN))
    return further(baseline().trials(records), stages, records)


def _baseline(rate: float, batch: float) -> Arm:
    sequences = int(batch)
    steps = SCRATCH.total_steps * SCRATCH.batch_sequences // sequences
    settings = replace(
        SCRATCH,
        lr=rate,
        batch_sequences=sequences,
        total_steps=steps,
        inner_steps=math.gcd(steps, SCRATCH.inner_steps),  # Of a lease; it averages with nobody.
        seed=TUNING_SEED,
    )
    return Arm("scratch", f"scratch-dp-b{sequences}-lr{rate:g}", settings)


def diloco(peers: int) -> Search:
    """Inner rates and outer momenta of plain DiLoCo, with the steps and tokens of the base."""
    grid = tuple(product(RATES, MOMENTA))
    return Search(partial(_diloco, peers), grid, (RATE_FACTOR, MOMENTUM_FACTOR))


def gained(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain DiLoCo, with larger outer rates for what is best with an outer rate of 1."""

    def gains(at: Settings) -> list[Arm]:
        name = f"scratch-diloco-{peers}-lr{at.lr:g}-momentum{at.momentum:g}-outer"
        return [Arm("scratch", f"{name}{gain:g}", replace(at, outer_lr=gain)) for gain in GAINS]

    return further(diloco(peers).trials(records), (gains,), records)


def balanced(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain DiLoCo, its inner rate and outer momentum tuned further around what is best."""

    def rates(shares: Sequence[float]) -> Stage:
        return lambda at: [_diloco(peers, each * at.lr, at.momentum) for each in shares]

    def momenta(at: Settings) -> list[Arm]:
        return [_diloco(peers, at.lr, each * at.momentum) for each in BETWEEN_MOMENTA]

    return further(diloco(peers).trials(records), (rates(REFINED), rates(FINER), momenta), records)


def averaged(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Plain averaging, without an outer optimizer: the grid's inner rates, and one between.

    Not beyond them: with momentum rates half as large were far worse.
    """
    rates = (RATES[0], REFINED[-1] * RATES[0], RATES[1])
    grid = tuple((rate, 0.0) for rate in rates)
    return Search(partial(_diloco, peers), grid, (1.0, 1.0)).trials(records)


def _diloco(peers: int, rate: float, momentum: float) -> Arm:
    settings = replace(
        SCRATCH,
        peers=peers,
        averages=True,
        lr=rate,
        outer_lr=1.0,
        momentum=momentum,
        seed=TUNING_SEED,
    )
    return Arm("scratch", f"scratch-diloco-{peers}-lr{rate:g}-momentum{momentum:g}", settings)
