"""What is compared with what: the arms by comparison, the most important first.

The data-parallel baseline is tuned first, and DiLoCo with as many trials; seeds of trials are not
those of the comparisons. An arm that rests on a tuned number can be named only once all trials of
that grid are there, so `arms` is a function of the records so far: ask again after each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.learning.settings import Churn, Settings
from p2ptrain.testing.learning.trial import Record

COMPARISONS = ("tuning", "peers", "codecs", "modes", "unequal", "churn", "horizon")

MODEL = ModelSpec(vocab=1024, layers=4, width=128, heads=4, kv_heads=4, ffn=400, sequence=128)
"""1,008,768 parameters: the smallest that is asked for, since a core trains 9,000 tokens a
second.
"""

BASE = Settings(
    MODEL, peers=1, inner_steps=20, total_steps=2560, batch_sequences=16, lr=4e-3, averages=False
)
"""5.24 million tokens, 5.2 for each parameter; 128 outer steps of 20 inner steps."""

TUNING_SEED = 0
SEEDS = (1, 2, 3)
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
BATCHES = (16, 32)
OUTER_RATES = (0.5, 0.8)
"""With each of the rates: as many trials as the baseline has with its batches."""

STREAMING_OUTER_LR = 0.4
"""What arXiv 2501.18512 uses with α = 0.5."""

Key = tuple[str, int, str]
"""An arm's name, its seed, and the digest of its settings."""


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


def arms(records: Mapping[Key, Record]) -> list[Arm]:
    """All arms that can be named with these records, those first that most depends on."""
    grids = {"dp": baseline_grid(), "diloco-4": diloco_grid(4), "diloco-2": diloco_grid(2)}
    found = {name: best(grid, records) for name, grid in grids.items()}
    dp, four, two = found["dp"], found["diloco-4"], found["diloco-2"]
    listed = [*grids["dp"], *grids["diloco-4"]]
    listed += seeded("peers", {"dp": dp} if dp else {})
    listed += seeded("peers", {"diloco-4": four} if four else {})
    listed += grids["diloco-2"]
    listed += seeded("peers", {"diloco-2": two} if two else {})
    if four:
        listed += seeded("codecs", codecs(four))
        listed += seeded("peers", others_of_peers(four))
        listed += seeded("modes", modes(four))
        listed += seeded("unequal", unequal(four))
        listed += seeded("churn", churn(four))
    if dp and four:
        listed += seeded("horizon", horizon(dp, four, grids["dp"], records))
    return listed


def baseline_grid() -> list[Arm]:
    """Rates and batches of ordinary training; the tokens are the same."""
    trials = []
    for rate, batch in product(RATES, BATCHES):
        steps = BASE.total_steps * BASE.batch_sequences // batch
        settings = replace(
            BASE, lr=rate, batch_sequences=batch, total_steps=steps, seed=TUNING_SEED
        )
        trials.append(Arm("tuning", f"dp-b{batch}-lr{rate:g}", settings))
    return trials


def diloco_grid(peers: int) -> list[Arm]:
    """Inner and outer rates of plain DiLoCo, with the steps and tokens of the base."""
    return [
        Arm(
            "tuning",
            f"diloco-{peers}-lr{rate:g}-outer{outer:g}",
            replace(_diloco(peers), lr=rate, outer_lr=outer, seed=TUNING_SEED),
        )
        for rate, outer in product(RATES, OUTER_RATES)
    ]


def _diloco(peers: int) -> Settings:
    return replace(BASE, peers=peers, averages=True)


def best(grid: Iterable[Arm], records: Mapping[Key, Record]) -> Settings | None:
    """The settings with the lowest loss, once all of the grid have one; who diverged has lost."""
    losses = []
    for arm in grid:
        record = records.get(arm.key)
        if record is None:
            return None
        if record.loss is not None:
            losses.append((record.loss, arm.name, arm.settings))
    return min(losses, key=lambda each: each[:2])[2]


def seeded(comparison: str, settings: Mapping[str, Settings]) -> Iterator[Arm]:
    """Seed by seed, so that a comparison that is cut has as many of each arm."""
    for seed, (name, each) in product(SEEDS, settings.items()):
        yield Arm(comparison, name, replace(each, seed=seed))


def others_of_peers(four: Settings) -> dict[str, Settings]:
    """Eight peers with the rates of four, and the floors: averaging alone, and a peer alone."""
    return {
        "mean-4": replace(four, outer_lr=1.0, momentum=0.0),
        "alone": replace(
            four, peers=1, averages=False, batch_sequences=four.batch_sequences // four.peers
        ),
        "diloco-8": replace(four, peers=8),
    }


def codecs(four: Settings) -> dict[str, Settings]:
    return {
        "int8": replace(four, codec="int8"),
        "int4": replace(four, codec="int4"),
        "int4-feedback": replace(four, codec="int4", feedback=True),
    }


def modes(four: Settings) -> dict[str, Settings]:
    late, steps = replace(four, outer_lr=STREAMING_OUTER_LR), four.inner_steps
    return {
        "streaming-1": replace(late, sync=SyncSpec(4, 1, 0.5)),
        "streaming-5": replace(late, sync=SyncSpec(4, 5, 0.5)),
        "plain-0.4": late,
        "streaming-1-same-lr": replace(four, sync=SyncSpec(4, 1, 0.5)),
        "async": replace(four, sync=SyncSpec(1, steps)),
        "eager": replace(four, sync=SyncSpec(1, steps, eager=True)),
        "rda": replace(four, sync=SyncSpec(merge="rda")),
    }


def unequal(four: Settings) -> dict[str, Settings]:
    """One of four at a quarter of the speed of the others."""
    slow = replace(four, slow=1)
    return {"slow-by-tokens": slow, "slow-equally": replace(slow, weights="equal")}


def churn(four: Settings) -> dict[str, Settings]:
    """Each outer step one of four stops and one joins. Three of four commit; so do three that
    stay.
    """
    often = replace(four, evaluate_every=four.inner_steps)
    three = replace(often, peers=3, batch_sequences=3 * four.peer_sequences)
    return {
        "churn-fresh": replace(often, churn=Churn()),
        "churn-warmup": replace(often, churn=Churn(warmup_steps=10)),
        "churn-donor": replace(often, churn=Churn("donor")),
        "three-that-stay": three,
    }


def horizon(
    dp: Settings, four: Settings, grid: Iterable[Arm], records: Mapping[Key, Record]
) -> dict[str, Settings]:
    """The gap to data-parallel over the number of outer steps, and with twice the batch."""
    wide = [arm for arm in grid if arm.settings.batch_sequences == 2 * BASE.batch_sequences]
    wide_dp = best(wide, records)
    assert wide_dp is not None, "the whole grid has records"
    return {
        "diloco-4-h10": replace(four, inner_steps=10),
        "diloco-4-h40": replace(four, inner_steps=40),
        "dp-wide": wide_dp,
        "diloco-4-wide": replace(
            four,
            batch_sequences=2 * four.batch_sequences,
            total_steps=four.total_steps // 2,
            inner_steps=10,
        ),
    }
