"""Comparisons of peers that train from their initial weights, without a common start.

These comparisons were made first. Seeds differ in when they learn to copy (`copying`). That effect
is larger than the allowed effect of codecs or modes. So all comparisons except those of peers use a
common start. The searches here are finer than those in `tuning`.
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
"""Batch sizes in sequences. Smaller batches would need more steps than DiLoCo has."""
GAINS = (1.3, 1.6)
"""Outer learning rates above 1. All steps of Muon have the same length, so the mean of four peers'
steps is only 0.6 times as long as the step of one peer on all data. Only the outer rate lengthens
the mean without changing anything else. With 0.7 times the inner rate, 1.6 was far worse."""
BETWEEN = 48.0
BETWEEN_RATES = (1.2, 1.5)
"""Factors of the learning rate for the batch BETWEEN in the baseline: the rate grows with the
square root of the batch, or in proportion to it."""
BETWEEN_MOMENTA = (0.6, 1.3)
"""Factors of the outer momentum for two peers. With these factors, the search for two peers has
twelve trials. The search for four peers has twelve with GAINS. The search for the baseline has
twelve, including one trial beyond its grid."""


TRIED: Mapping[str, int] = {"mean-2": 1, "diloco-2-h6": 2, "fp16": 1, "int8": 1}
"""Number of seeds for some of the arms. The others use all seeds."""


def scratch(records: Mapping[Key, Record], seeds: Sequence[int]) -> tuple[list[Arm], list[Arm]]:
    """Return the trials, and the arms with the tuned settings that are known so far."""
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
    """Return the search over learning rates and batches of ordinary training, for equal tokens."""
    return Search(_baseline, tuple(product(RATES, BATCHES)), (RATE_FACTOR, 1.0))


def refined(records: Mapping[Key, Record]) -> Tuned:
    """Tune the baseline further around its best settings."""

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
        inner_steps=math.gcd(steps, SCRATCH.inner_steps),  # This sets only the length of a lease.
        seed=TUNING_SEED,
    )
    return Arm("scratch", f"scratch-dp-b{sequences}-lr{rate:g}", settings)


def diloco(peers: int) -> Search:
    """Return the search over inner rates and outer momenta of DiLoCo, for the base's tokens."""
    grid = tuple(product(RATES, MOMENTA))
    return Search(partial(_diloco, peers), grid, (RATE_FACTOR, MOMENTUM_FACTOR))


def gained(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Tune plain DiLoCo with an outer rate of 1, and then try larger outer rates."""

    def gains(at: Settings) -> list[Arm]:
        name = f"scratch-diloco-{peers}-lr{at.lr:g}-momentum{at.momentum:g}-outer"
        return [Arm("scratch", f"{name}{gain:g}", replace(at, outer_lr=gain)) for gain in GAINS]

    return further(diloco(peers).trials(records), (gains,), records)


def balanced(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Tune plain DiLoCo, and tune its inner rate and outer momentum further around the best."""

    def rates(shares: Sequence[float]) -> Stage:
        return lambda at: [_diloco(peers, each * at.lr, at.momentum) for each in shares]

    def momenta(at: Settings) -> list[Arm]:
        return [_diloco(peers, at.lr, each * at.momentum) for each in BETWEEN_MOMENTA]

    return further(diloco(peers).trials(records), (rates(REFINED), rates(FINER), momenta), records)


def averaged(peers: int, records: Mapping[Key, Record]) -> Tuned:
    """Tune plain averaging without an outer optimizer: the grid's inner rates and one between.

    The search does not go beyond the grid, since with momentum a rate half as large was far worse.
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
