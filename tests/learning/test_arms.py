"""The experiments (arms) of the comparisons, which of them can be defined yet, and the tables of
finished ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from p2ptrain.config.run_file import INT4_BLOCK
from p2ptrain.sync import SyncSpec
from p2ptrain.trainer.formats.shapes import parameter_count
from scripts.research.learning.arms import (
    ASKED,
    COMPARED,
    COMPARISONS,
    REPEATED_LAST,
    SEEDS,
    arms,
)
from scripts.research.learning.compared import Asked, verdict
from scripts.research.learning.pictures import picture, picture_of_gaps
from scripts.research.learning.queue import Queue
from scripts.research.learning.record import Record
from scripts.research.learning.report import (
    TABLES,
    insert,
    outcome,
    rise,
    tables,
)
from scripts.research.learning.results import collect, read_results, write_result
from scripts.research.learning.scratch import TRIED, baseline
from scripts.research.learning.search import Arm, Key, Search, best
from scripts.research.learning.settings import Settings, TextSpec
from scripts.research.learning.tuning import RATE_FACTOR, RATES, START, TUNING_SEED, diloco
from tests.learning.conftest import toy

EQUAL = "0.0000 ± 0.0000 | 1.0000 | tie | 0.0000 ± 0.0000; 0.0000 ± 0.0000 | 1.0000"


def record(arm: Arm, loss: float | None, text: str = "stdlib") -> Record:
    settings = arm.settings
    curve = ((10, 3.0, 3.1), (20, loss or 99.0, 2.9))
    return Record(
        arm.name,
        settings.seed,
        settings.digest,
        text,
        loss,
        7,
        3,
        1.5,
        curve,
        settings.plain(),
        strangers_loss=loss,
        copied_loss=loss,
        other_loss=loss,
    )


def recorded(found: list[Arm], loss: float = 2.0) -> dict[Key, Record]:
    """Return a record of each arm. The loss of a common start is 0.5 above that of the arms that
    begin with it."""
    return {
        arm.key: record(arm, loss + arm.settings.seed / 100 + 0.5 * (arm.name == "start"))
        for arm in found
    }


def grown(momentum_costs: float = -1e-3) -> tuple[list[Arm], dict[Key, Record]]:
    """Return all arms and their records. Some arms can be defined only after others have a record,
    so this is done step by step. The loss of a trial depends on its outer momentum."""
    found, records = _grown(momentum_costs)
    return list(found), dict(records)


@cache
def _grown(momentum_costs: float) -> tuple[list[Arm], dict[Key, Record]]:
    records: dict[Key, Record] = {}
    while len(found := arms(records)) > len(records):
        records = recorded(found)
        for arm in found:
            if of_trials(arm):
                records[arm.key] = record(arm, 2.0 + momentum_costs * arm.settings.momentum)
    return found, records


def of_trials(arm: Arm) -> bool:
    return arm.settings.seed == TUNING_SEED


def test_only_trials_and_baselines_are_defined_at_first() -> None:
    first = arms({})
    assert all(of_trials(arm) for arm in first)
    after = [arm for arm in first if arm.comparison == "tuning"]
    assert [arm.settings.peers for arm in after] == [1] * 2 + [4] * 4 + [2] * 4
    assert first[: len(after)] == after, "arms without a start come last"


def test_finally_all_comparisons_have_three_seeds_of_each_arm() -> None:
    found, _ = grown()
    assert {arm.comparison for arm in found} == {*COMPARISONS, "start"}
    assert len({arm.key for arm in found}) == len(found)
    seeds: dict[str, set[int]] = {}
    for arm in found:
        seeds.setdefault(arm.name, set()).add(arm.settings.seed)
    shown = {name for table in TABLES for name in (table.reference, *table.arms)}
    assert shown | {"start"} == {arm.name for arm in found if not of_trials(arm)}
    few = {f"scratch-{name}": set(SEEDS[:count]) for name, count in TRIED.items()}
    assert {name: seeds[name] for name in shown} == {name: {1, 2, 3} for name in shown} | few


def test_peers_and_requested_arms_come_before_the_others() -> None:
    found, _ = grown()
    others = ("scratch", "start")
    compared = [arm for arm in found if not of_trials(arm) and arm.comparison not in others]
    rest = [(arm.name, arm.settings.seed) for arm in compared]
    assert [seed for _, seed in rest[:9]] == [1] * 3 + [2] * 3 + [3] * 3
    asked = 9 + len(SEEDS) * len(ASKED)
    assert {name for name, _ in rest[9:asked]} == set(ASKED)
    last = [(name, seed) for name, seed in rest if name in REPEATED_LAST and seed > 1]
    assert rest[-len(last) :] == last
    for part in (rest[9:asked], rest[asked : -len(last)], last):
        seeds = [seed for _, seed in part]
        assert seeds == sorted(seeds)


def test_arms_begin_after_the_same_start_unless_compared_from_zero() -> None:
    found, _ = grown()
    own = ("scratch", "start")
    assert all((arm.settings.start is None) == (arm.comparison in own) for arm in found)
    starts = {arm.settings for arm in found if arm.comparison == "start"}
    assert starts == {arm.settings.beginning for arm in found if arm.settings.start}
    assert sorted(each.seed for each in starts) == [0, 1, 2, 3], "one for each seed"
    text = 4_248_000  # The number of tokens available for training.
    assert (START.sequences + 1272 * 32) * 128 < 2.1 * text, "arms read the text about twice"


def test_ordinary_training_has_as_many_trials_as_peers_have() -> None:
    found, _ = grown()
    names = ("dp-lr", "diloco-2-lr", "diloco-4-lr")
    one, two, four = (sum(arm.name.startswith(name) for arm in found) for name in names)
    assert one >= max(two, four)
    names = ("scratch-dp-b", "scratch-diloco-2-lr", "scratch-diloco-4-lr")
    one, two, four = (sum(arm.name.startswith(name) for arm in found) for name in names)
    assert one >= two - 1, "for two peers, one more learning rate is tried without momentum"
    assert one >= four - 1


def test_plain_averaging_is_not_trained_twice() -> None:
    found, records = grown(momentum_costs=1e-3)
    four = next(arm for arm in found if arm.name == "diloco-4")
    assert (four.settings.outer_lr, four.settings.momentum) == (1, 0)
    assert {"mean-2", "mean-4"}.isdisjoint(arm.name for arm in found)
    text = tables(list(records.values()))
    assert text.count(f"| mean-4 | 2.0200 ± 0.0100 | 3 | {EQUAL} | no data |  |") == 1
    assert text.count(f"| mean-2 | 2.0200 ± 0.0100 | 3 | {EQUAL} | no data |  |") == 1


def test_compared_arms_have_equal_tokens_and_are_large_enough() -> None:
    found, _ = grown()
    by_name = {arm.name: arm.settings for arm in found if not of_trials(arm)}
    assert parameter_count(by_name["dp"].model) > 1_000_000
    one_size = ("dp", "diloco-2", "diloco-4", "diloco-8", "mean-4", "int4-feedback")
    for name in (*one_size, "plain-h20", "streaming-5", "eager"):
        settings = by_name[name]
        tokens = settings.total_steps * settings.batch_sequences * settings.model.sequence
        assert tokens == (5_210_112 if name in one_size else 5_222_400)
        assert tokens > 5 * parameter_count(settings.model)
        assert settings.total_steps // settings.inner_steps >= 100
    assert by_name["streaming-5"].sync == SyncSpec(4, 5, 0.5)
    assert by_name["streaming-5"].schedule.stride == 5


def test_best_trial_is_chosen_only_after_all_and_never_a_diverged_one() -> None:
    grid = [Arm("tuning", f"trial-{lr}", toy(lr=lr)) for lr in (0.1, 0.2, 0.3)]
    records = {arm.key: record(arm, loss) for arm, loss in zip(grid, (None, 2.5, 2.4), strict=True)}
    assert best(grid, records) == grid[2].settings
    assert best(grid, dict(list(records.items())[1:])) is None


def searched(search: Search, loss_at: Callable[[Settings], float]) -> list[str]:
    """Return the names of all trials of a search over a loss surface, in the order of their
    creation."""
    records: dict[Key, Record] = {}
    while True:
        trials, chosen = search.trials(records)
        if chosen is not None:
            assert loss_at(chosen) == min(loss_at(arm.settings) for arm in trials)
            return [arm.name for arm in trials]
        records = {arm.key: record(arm, loss_at(arm.settings)) for arm in trials}


def test_search_ends_once_its_best_is_inside_the_grid() -> None:
    names = searched(baseline(), lambda each: abs(each.lr - 8e-3) + each.batch_sequences)
    assert names[:4] == [
        "scratch-dp-b32-lr0.008",
        "scratch-dp-b64-lr0.008",
        "scratch-dp-b32-lr0.016",
        "scratch-dp-b64-lr0.016",
    ]
    assert names[4:] == ["scratch-dp-b32-lr0.004"], "now the best is inside the grid"


def test_search_extends_the_grid_while_results_improve() -> None:
    names = searched(baseline(), lambda each: abs(each.lr - 6e-2) + each.batch_sequences)
    assert names[4:] == [
        "scratch-dp-b32-lr0.032",
        "scratch-dp-b32-lr0.064",
        "scratch-dp-b32-lr0.128",
    ]


def test_search_extends_both_sides_and_both_rates() -> None:
    def loss_at(settings: Settings) -> float:
        return abs(math.log(settings.lr / 2e-3)) + abs(settings.momentum - 0.6)

    names = searched(diloco(4), loss_at)
    assert "diloco-4-lr0.002-momentum0.64" in names
    assert len(names) <= 4 + 6


def test_records_of_different_settings_do_not_count() -> None:
    first = arms({})[0]
    old = Arm("tuning", first.name, replace(first.settings, warmup_steps=7))
    records = recorded([old])
    assert records.keys().isdisjoint({arm.key for arm in arms(records)})


def test_new_setting_with_its_default_leaves_old_records_valid() -> None:
    assert toy(feedback=False).digest == toy().digest
    assert len({toy().digest, toy(feedback=True).digest, toy(sync=SyncSpec(2, 1, 0.5)).digest}) == 3


def test_collected_records_survive_encoding(tmp_path: Path) -> None:
    found, records = grown()
    results, folder = tmp_path / "results", tmp_path / "work"
    collect([(arm.comparison, records[arm.key]) for arm in found[:30]], results)
    for arm in found[30:]:
        write_result(records[arm.key], folder / arm.folder)
    assert read_results(results, folder) == records
    before = {file.name: file.read_text() for file in results.iterdir()}
    collect([(arm.comparison, records[arm.key]) for arm in reversed(found[20:30])], results)
    assert {file.name: file.read_text() for file in results.iterdir()} == before, (
        "no record was removed"
    )


def test_table_shows_measured_values_and_marks_missing_ones() -> None:
    found, records = grown()
    chosen = [arm for arm in found if arm.name in ("dp", "diloco-2")]
    text = tables([records[arm.key] for arm in chosen])
    assert "| dp | 2.0200 ± 0.0100 | 3 |  |  |  |  |  | no data |  |" in text
    assert f"| diloco-2 | 2.0200 ± 0.0100 | 3 | {EQUAL} | no data | ÷ ≤ 1.02 |" in text
    assert "| diloco-4 | not measured yet | 0 |  |  |  |  |  | no data | ÷ ≤ 1.05 |" in text
    assert "- churn-donor: not measured yet" in text


def test_gain_table_subtracts_the_loss_at_the_shared_start() -> None:
    found, records = grown()
    lost = {arm.key: record(arm, 2.06) for arm in found if arm.folder == "diloco-4-seed1"}
    text = tables(list((records | lost).values()))
    assert "| dp | 2.5200 ± 0.0100 | 2.0200 ± 0.0100 | 1.0000 ± 0.0000 | 3 |" in text
    assert "| diloco-4 | 2.5200 ± 0.0100 | 2.0367 ± 0.0208 | 0.9667 ± 0.0577 | 3 |" in text
    assert "| start |" not in text


def test_one_table_lists_all_targets_with_their_results() -> None:
    found, records = grown()
    text = outcome(list(records.values()))
    assert "| diloco-2 ÷ dp | ≤ 1.02 | 1.0000 ± 0.0000 | 3 | met |" in text
    assert "| churn-fresh ÷ three-that-stay | ≤ 1.01 | 1.0000 ± 0.0000 | 3 | met |" in text
    assert (
        "| largest rise of churn-donor in an outer step, nats | ≤ 0.1 | 0.0000 | 3 | met |" in text
    )
    losses = {"dp": 2.0, "diloco-2": 2.1, "diloco-4": 2.1, "int8": 2.1021}
    some = {arm.key: arm for arm in found if arm.name in losses and arm.settings.seed < 3}
    text = outcome([record(arm, losses[arm.name]) for arm in some.values()])
    assert "| diloco-2 ÷ dp | ≤ 1.02 | 1.0500 ± 0.0000 | 2 | so far **missed** |" in text
    assert "| diloco-4 ÷ dp | ≤ 1.05 | 1.0500 ± 0.0000 | 2 | so far met |" in text
    assert "| int8 − diloco-4 | ≤ 0.002 | 0.0021 ± 0.0000 | 2 | so far **missed** |" in text
    assert "| streaming-1 ÷ plain-h20 | ≤ 1.005 | not measured yet | 0 |  |" in text


def test_results_use_only_seeds_that_both_arms_have() -> None:
    assert Asked("−", 0.1).found({1: 2.0, 2: 3.0}, {2: 2.5, 3: 9.0}) == [0.5]
    assert Asked("÷", 0.1).found({1: 2.0}, {2: 2.5}) == []


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.1], "so far met"),
        ([0.1, 0.5], "so far **missed**"),
        ([0.10, 0.11, 0.12], "met"),
        ([0.0, 0.2, 0.3], "met, within the noise"),
        ([0.1, 0.2, 0.33], "**missed**, within the noise"),
        ([0.3, 0.31, 0.32], "**missed**"),
    ],
)
def test_result_within_the_noise_of_its_bound_is_marked(
    differences: list[float], word: str
) -> None:
    assert Asked("−", 0.2).verdict(differences) == word


def test_diverged_seeds_are_reported_and_not_averaged() -> None:
    found, records = grown()
    of_arm = [arm for arm in found if arm.name in ("dp", "diloco-2", "diloco-8")]
    lost = [arm for arm in of_arm if arm.name == "diloco-8" or arm.settings.seed == 2]
    records |= {arm.key: record(arm, None) for arm in lost if arm.name != "dp"}
    text = tables([records[arm.key] for arm in of_arm])
    assert "| diloco-2 | 2.0200 ± 0.0141 | 2; 1 more diverged | 0.0000 ± 0.0000 |" in text
    assert "| diloco-8 | 3 diverged | 0 |  |  |  |  |  | no data |  |" in text
    told = outcome([records[arm.key] for arm in of_arm])
    assert "| diloco-2 ÷ dp | ≤ 1.02 | 1 diverged | 3 | **missed** |" in told


def test_largest_rise_is_measured_between_consecutive_steps() -> None:
    first = record(arms({})[0], 2.0)
    losses = (5.0, 4.0, 4.25, 3.0, 3.1)
    curve = tuple((step, loss, 0.0) for step, loss in enumerate(losses))
    assert rise(replace(first, curve=curve)) == pytest.approx(0.25)
    assert rise(replace(first, curve=curve[:2])) == 0, "the loss only fell"


def test_losses_on_different_texts_are_marked_as_not_comparable() -> None:
    first, second, *_ = arms({})
    assert tables([record(first, 2.0), record(second, 2.0)]).startswith("2 arms and seeds; texts s")
    assert "Not comparable" in tables([record(first, 2.0), record(second, 2.0, "another")])
    compared = Arm("peers", "dp", replace(second.settings, text=COMPARED))
    assert "Not comparable" not in tables([record(first, 2.0), record(compared, 2.0, "another")])


def test_comparison_uses_different_sequences_than_the_tuning() -> None:
    found, _ = grown()
    assert all((arm.settings.text == COMPARED) != of_trials(arm) for arm in found)
    assert TextSpec() != COMPARED


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.5], "one seed"),
        ([0.5, 0.5], "two seeds"),
        ([0.0, 0.0, 0.0], "tie"),
        ([0.1, -0.1, 0.2], "tie"),
        ([0.10, 0.11, 0.12], "higher"),
        ([-0.10, -0.11, -0.12], "lower"),
    ],
)
def test_difference_below_two_deviations_is_a_tie(differences: list[float], word: str) -> None:
    assert verdict(differences) == word


def test_inserted_table_replaces_the_previous_one_and_keeps_the_page() -> None:
    page = "# Title\n\n<!-- one: begin -->\nold\n<!-- one: end -->\n\nafter\n"
    once = insert(page, "one", "new")
    assert once == "# Title\n\n<!-- one: begin -->\n\nnew\n<!-- one: end -->\n\nafter\n"
    assert insert(once, "one", "new") == once


def test_plot_has_a_line_for_each_arm() -> None:
    found, records = grown()
    codecs = [records[arm.key] for arm in found if arm.comparison == "codecs"]
    assert {each.settings["block"] for each in codecs if "int4" in each.arm} == {INT4_BLOCK}
    drawn = picture("codecs", codecs)
    assert drawn.count("<polyline") == 2 * 4, "the entire curve, and an enlarged plot of its end"
    assert "int4-feedback (3)" in drawn


def test_gap_is_plotted_over_outer_steps_batch_and_peers() -> None:
    _, records = grown()
    drawn = picture_of_gaps(list(records.values()))
    assert drawn is not None
    assert drawn.count("<polyline") == 5 * (3 + 1), "three seeds and their mean"
    dp = [each for each in records.values() if each.arm in ("dp", "diloco-4")]
    assert picture_of_gaps(dp) is None, "a single point is not a line"


def test_queue_trains_missing_arms_and_those_that_depend_on_them(
    texts: Path, tmp_path: Path
) -> None:
    """There are two trials, and an arm that depends on the better of them."""
    grid = [Arm("tuning", f"trial-{lr}", toy(lr=lr, total_steps=8)) for lr in (1e-5, 1e-2)]

    def named(records: dict[Key, Record]) -> list[Arm]:
        chosen = best(grid, records)
        return [*grid, *([Arm("peers", "last", replace(chosen, seed=5))] if chosen else [])]

    queue = Queue(texts, tmp_path / "none", ["peers"], named)
    assert [arm.name for arm in queue.lacking()] == ["trial-1e-05", "trial-0.01"]
    looks = iter([False] * 5)
    queue.work(lambda: next(looks, True))
    assert [arm.name for arm in queue.lacking()] == ["trial-1e-05", "trial-0.01"], (
        "the queue was interrupted in the first arm"
    )
    queue.work(lambda: False)
    assert queue.lacking() == []
    records = read_results(tmp_path / "none", texts)
    assert sorted(key[0] for key in records) == ["last", "trial-0.01", "trial-1e-05"]
    (last,) = [each for each in records.values() if each.arm == "last"]
    assert last.settings["lr"] == 1e-2
    assert not list(texts.glob("*/checkpoint.npz")), "finished arms leave no checkpoint"


def test_grids_try_rates_at_equal_ratios() -> None:
    assert {later / earlier for earlier, later in pairwise(RATES)} == {RATE_FACTOR}
