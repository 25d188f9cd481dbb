"""All arms by comparison, the most important first.

The settings of an arm that uses tuned numbers are known only after their search has ended. So
`arms` is a function of the records so far. Call it again after each new record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from p2ptrain.config.run_file import usual_block
from p2ptrain.kernels import CodecName
from p2ptrain.sync import SyncSpec
from scripts.research.learning.record import Record
from scripts.research.learning.scratch import scratch
from scripts.research.learning.search import Arm, Key, Search
from scripts.research.learning.settings import Churn, Settings
from scripts.research.learning.tuning import (
    NEAR,
    SHORTER,
    TUNED_ON,
    averaged,
    baseline,
    late,
    longer,
    other_beta,
    rated,
    tuned,
    twice_the_batch,
)

COMPARISONS = {
    "tuning": "the rates that all other comparisons use",
    "peers": "ordinary training, two, four and eight peers, a lone peer, and plain averaging",
    "codecs": "fp32, fp16, int8, int4, and int4 with error feedback",
    "modes": "plain, streaming, async and eager",
    "unequal": "one of four peers has a quarter of the speed",
    "churn": "in each outer step, one of four peers stops and one joins",
    "horizon": "the gap by number of outer steps and by batch",
    "scratch": "comparisons that start from the initial weights",
}
"""Comparisons by name, with a description."""
SEEDS = (1, 2, 3)

ASKED = (
    "int8",
    "int4",
    "int4-feedback",
    "plain-h20",
    "streaming-1",
    "churn-fresh",
    "churn-donor",
    "churn-donors",
    "three-that-stay",
)
"""Arms with a required result. These arms and the arms of "peers" need three seeds, so they come
first.
"""

REPEATED_LAST = (
    "fp16",
    "churn-warmup",
    "churn-fresh-h24",
    "churn-donor-h24",
    "three-that-stay-h24",
    "diloco-2-h6",
    "diloco-4-h24",
    "dp-wide",
    "diloco-4-wide",
    "dp-short",
    "diloco-4-short",
)
"""Arms that do not need three seeds. They get further seeds after all others have three."""

COMPARED = replace(TUNED_ON, draw=0, validation_sequences=1024)
"""Held-out text of the compared arms: 131,072 tokens drawn from all documents, 3 % of the text, and
as many tokens of whole documents. The trials use different sequences."""


def arms(records: Mapping[Key, Record]) -> list[Arm]:
    """Return all arms whose settings follow from these records, in the order in which to run them.

    The trials come first, then three seeds of the peers and of the arms in ASKED. Then come the
    other arms, seed by seed, so that failures show early. Further seeds of the arms in
    REPEATED_LAST come last.
    """
    listed: list[Arm] = []
    chosen: dict[str, Settings] = {}
    for name, (trials, best) in {
        "dp": baseline(records),
        "diloco-4": averaged(4, records),
        "diloco-2": averaged(2, records),
    }.items():
        listed += trials
        chosen |= {name: best} if best else {}
    listed += seeded("peers", chosen)
    if len(chosen) == 3:
        listed += sorted(beside(chosen, records), key=_turn)
    listed += from_scratch(records)
    return list({arm.key: arm for arm in [*listed, *starts(listed)]}.values())


def starts(listed: Sequence[Arm]) -> Iterator[Arm]:
    """Yield the common starts of the listed arms.

    A queue does not run them as arms of their own: the first arm that needs a start trains it.
    """
    for arm in listed:
        if (beginning := arm.settings.beginning) is not None:
            yield Arm("start", "start", beginning)


def from_scratch(records: Mapping[Key, Record]) -> list[Arm]:
    trials, compared = scratch(records, SEEDS)
    return trials + [replace(arm, settings=_compared(arm.settings)) for arm in compared]


def _turn(arm: Arm) -> tuple[int, int]:
    """Return the sort key of an arm. A trial is sorted with the first seed of the arm it tunes."""
    seed = max(arm.settings.seed, SEEDS[0])
    if any(arm.name == name or arm.name.startswith(f"{name}-lr") for name in ASKED):
        return 0, seed
    return (2 if seed > SEEDS[0] and arm.name in REPEATED_LAST else 1), seed


def beside(chosen: Mapping[str, Settings], records: Mapping[Key, Record]) -> Iterator[Arm]:
    """Yield the arms that use these rates, preceded by the trials that they need."""
    two, four = chosen["diloco-2"], chosen["diloco-4"]
    yield from other_beta({"dp": chosen["dp"], "diloco-4": four})
    yield from seeded("codecs", codecs(four))
    trials, plain = longer("plain-h20", longer_steps(four), records)
    yield from trials
    if plain is not None:
        yield from seeded("modes", {"plain-h20": plain})
        trials, streaming = longer("streaming-1", in_fragments(plain, 1), records)
        yield from trials
        if streaming is not None:
            late_by = {"streaming-1": 1, "streaming-5": 5}
            later = {name: in_fragments(streaming, steps) for name, steps in late_by.items()}
            yield from seeded("modes", later)
    yield from seeded("churn", churn(four))
    yield from seeded("peers", others_of_peers(two, four))
    yield from seeded("unequal", unequal(four))
    yield from found("peers", "alone", rated("alone", alone(four), 1 / NEAR), records)
    if plain is not None:
        for name, spec in delayed(plain).items():
            yield from found("modes", name, late(name, replace(plain, sync=spec)), records)
    for name in ("dp", "diloco-4"):
        search = rated(f"{name}-wide", twice_the_batch(chosen[name]), NEAR)
        yield from found("horizon", f"{name}-wide", search, records)
        yield from seeded("horizon", {f"{name}-short": half_as_long(chosen[name])})
    yield from seeded("horizon", horizon("diloco-4", four, (6, 24)))
    yield from seeded("horizon", horizon("diloco-2", two, (6,)))
    yield from seeded("churn", longer_lives(churn(four)))


def found(
    comparison: str, name: str, search: Search, records: Mapping[Key, Record]
) -> Iterator[Arm]:
    """Yield the trials of a search and, once it has ended, the arm with the best settings."""
    trials, best = tuned(search.trials(records))
    yield from trials
    yield from seeded(comparison, {name: best} if best else {})


def seeded(comparison: str, settings: Mapping[str, Settings]) -> Iterator[Arm]:
    """Yield arms seed by seed, so that an interrupted comparison has equal numbers of seeds."""
    for seed, (name, each) in product(SEEDS, settings.items()):
        yield Arm(comparison, name, _compared(replace(each, seed=seed)))


def _compared(settings: Settings) -> Settings:
    return replace(settings, text=COMPARED)


def others_of_peers(two: Settings, four: Settings) -> dict[str, Settings]:
    """Return eight peers with the rates of four, and plain averaging with the same inner rate.

    Plain averaging is a lower bound. It is left out if the tuned outer optimizer is the same.
    """
    means = {
        f"mean-{each.peers}": replace(each, outer_lr=1.0, momentum=0.0)
        for each in (two, four)
        if (each.outer_lr, each.momentum) != (1.0, 0.0)
    }
    return {**means, "diloco-8": replace(four, peers=8)}


def alone(four: Settings) -> Settings:
    """Return the second lower bound: one of four peers, with its quarter of the tokens."""
    return replace(
        four,
        peers=1,
        averages=False,
        outer_lr=1.0,
        momentum=0.0,
        batch_sequences=four.batch_sequences // four.peers,
    )


def half_as_long(settings: Settings) -> Settings:
    return replace(settings, total_steps=settings.total_steps // SHORTER)


def codecs(four: Settings) -> dict[str, Settings]:
    """Return four peers with each codec, with the default block size of run files.

    fp16 rounds very little, but the run is still a different one. So its difference shows how far
    apart two practically equal runs end.
    """
    names: tuple[CodecName, ...] = ("fp16", "int8", "int4")
    coded: dict[str, Settings] = {
        name: replace(four, codec=name, block=usual_block(name)) for name in names
    }
    return {**coded, "int4-feedback": replace(coded["int4"], feedback=True)}


def longer_steps(four: Settings) -> Settings:
    """Return settings with 102 outer steps of 20 inner steps and equal tokens.

    H = 20 allows an overlap of 5 between two of four fragments. The rates are those for H = 12.
    """
    return replace(four, inner_steps=20, total_steps=2040, batch_sequences=20)


def in_fragments(settings: Settings, overlap_steps: int) -> Settings:
    """Return streaming settings. The rates are those that were tuned for an overlap of one step,
    even if this overlap is longer."""
    return replace(settings, sync=SyncSpec(4, overlap_steps, 0.5))


def delayed(plain: Settings) -> dict[str, SyncSpec]:
    """Return the modes with averages one outer step late. Their outer settings are tuned again."""
    steps = plain.inner_steps
    return {"async": SyncSpec(1, steps), "eager": SyncSpec(1, steps, eager=True)}


def unequal(four: Settings) -> dict[str, Settings]:
    """Return four peers, one of them at a quarter of the speed of the others."""
    slow = replace(four, slow=1)
    return {"slow-by-tokens": slow, "slow-equally": replace(slow, weights="equal")}


def churn(four: Settings) -> dict[str, Settings]:
    """Return the arms with churn: in each outer step one of four peers stops and one joins.

    So three of four contribute. `three-that-stay` has three peers without churn.
    """
    often = replace(four, evaluate_every=four.inner_steps)
    three = replace(often, peers=3, batch_sequences=3 * four.peer_sequences)
    return {
        "churn-fresh": replace(often, churn=Churn()),
        "churn-warmup": replace(often, churn=Churn(warmup_steps=10)),
        "churn-donor": replace(often, churn=Churn("donor")),
        "churn-donors": replace(often, churn=Churn("donors")),
        "three-that-stay": three,
    }


def longer_lives(churned: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return churn arms with H = 24: peers stay for the same number of outer steps, which are twice
    as long."""
    return {
        f"{name}-h24": replace(churned[name], inner_steps=24, evaluate_every=24)
        for name in ("churn-fresh", "churn-donor", "three-that-stay")
    }


def horizon(name: str, tuned: Settings, inner_steps: Sequence[int]) -> dict[str, Settings]:
    """Return arms with other values of H, with the rates that were tuned for H = 12."""
    return {f"{name}-h{steps}": replace(tuned, inner_steps=steps) for steps in inner_steps}
