"""What is compared with what: the arms by comparison, the most important first.

An arm that rests on tuned numbers can be named only once their search has ended, so `arms` is a
function of the records so far: ask again after each.
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
    "tuning": "the rates that all others rest on",
    "peers": "ordinary training against two, four and eight peers, a lone one and plain means",
    "codecs": "fp32 against fp16, int8, int4, and int4 with error feedback",
    "modes": "plain against streaming, async and eager",
    "unequal": "one of four at a quarter of the speed",
    "churn": "in each outer step one of four stops and one joins",
    "horizon": "the gap over outer steps and batch",
    "scratch": "from first weights, what was compared so",
}
"""By name, and what is compared."""
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
"""Of these, and of peers, so much was asked that three seeds must say it: they come first."""

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
"""Nobody asked for three seeds of these: theirs are repeated once all others have three."""

COMPARED = replace(TUNED_ON, draw=0, validation_sequences=1024)
"""131,072 tokens of all documents, 3 % of the text; other ones than rates are tuned on. And as many
of whole documents."""


def arms(records: Mapping[Key, Record]) -> list[Arm]:
    """All arms that can be named with these records, those first that most depends on: the rates,
    then three seeds of the peers and of whatever else something was asked of; then one seed of all
    else before the next, to see early what fails, and before other seeds of what need not be
    repeated.
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
    """What arms begin with: trained by whoever needs it first, and no arm of a queue's."""
    for arm in listed:
        if (beginning := arm.settings.beginning) is not None:
            yield Arm("start", "start", beginning)


def from_scratch(records: Mapping[Key, Record]) -> list[Arm]:
    trials, compared = scratch(records, SEEDS)
    return trials + [replace(arm, settings=_compared(arm.settings)) for arm in compared]


def _turn(arm: Arm) -> tuple[int, int]:
    """Trials, named after what rests on them, stand before its first seed."""
    seed = max(arm.settings.seed, SEEDS[0])
    if any(arm.name == name or arm.name.startswith(f"{name}-lr") for name in ASKED):
        return 0, seed
    return (2 if seed > SEEDS[0] and arm.name in REPEATED_LAST else 1), seed


def beside(chosen: Mapping[str, Settings], records: Mapping[Key, Record]) -> Iterator[Arm]:
    """What rests on these rates. Trials of its own stand before what rests on them."""
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
    """A search of its own, and once it has ended the arm with what was best."""
    trials, best = tuned(search.trials(records))
    yield from trials
    yield from seeded(comparison, {name: best} if best else {})


def seeded(comparison: str, settings: Mapping[str, Settings]) -> Iterator[Arm]:
    """Seed by seed, so that a comparison that is cut has as many of each arm."""
    for seed, (name, each) in product(SEEDS, settings.items()):
        yield Arm(comparison, name, _compared(replace(each, seed=seed)))


def _compared(settings: Settings) -> Settings:
    return replace(settings, text=COMPARED)


def others_of_peers(two: Settings, four: Settings) -> dict[str, Settings]:
    """Eight peers with the rates of four, and averaging alone as a floor, with the same inner rate.

    It may be what the tuned outer optimizer does: then it is not trained again.
    """
    means = {
        f"mean-{each.peers}": replace(each, outer_lr=1.0, momentum=0.0)
        for each in (two, four)
        if (each.outer_lr, each.momentum) != (1.0, 0.0)
    }
    return {**means, "diloco-8": replace(four, peers=8)}


def alone(four: Settings) -> Settings:
    """The other floor: one of four peers with its quarter of the tokens."""
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
    """The first rounds next to nothing, and is another run all the same: how far apart two runs are
    that differ by nothing. Blocks are those of a run file that names none.
    """
    names: tuple[CodecName, ...] = ("fp16", "int8", "int4")
    coded: dict[str, Settings] = {
        name: replace(four, codec=name, block=usual_block(name)) for name in names
    }
    return {**coded, "int4-feedback": replace(coded["int4"], feedback=True)}


def longer_steps(four: Settings) -> Settings:
    """102 outer steps of 20 inner steps, for an overlap of 5 between two of four fragments; as many
    tokens, by the rates that were tuned for H = 12.
    """
    return replace(four, inner_steps=20, total_steps=2040, batch_sequences=20)


def in_fragments(settings: Settings, overlap_steps: int) -> Settings:
    """Streaming: the rates of an overlap of one inner step are used for a longer one, too."""
    return replace(settings, sync=SyncSpec(4, overlap_steps, 0.5))


def delayed(plain: Settings) -> dict[str, SyncSpec]:
    """Modes whose means come an outer step late: their momentum and outer rate are tuned anew."""
    steps = plain.inner_steps
    return {"async": SyncSpec(1, steps), "eager": SyncSpec(1, steps, eager=True)}


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
        "churn-donors": replace(often, churn=Churn("donors")),
        "three-that-stay": three,
    }


def longer_lives(churned: Mapping[str, Settings]) -> dict[str, Settings]:
    """A peer that stays for as many outer steps of 24 lives twice as long."""
    return {
        f"{name}-h24": replace(churned[name], inner_steps=24, evaluate_every=24)
        for name in ("churn-fresh", "churn-donor", "three-that-stay")
    }


def horizon(name: str, tuned: Settings, inner_steps: Sequence[int]) -> dict[str, Settings]:
    """Twice and half as many outer steps, by the rates that were tuned for H = 12."""
    return {f"{name}-h{steps}": replace(tuned, inner_steps=steps) for steps in inner_steps}
