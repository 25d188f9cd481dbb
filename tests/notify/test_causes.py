"""Events and losses that matter are told, each under its cause."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.cli.error_codes import CODES
from p2ptrain.notify.causes import BY_CODE, BY_KIND, cause_of, is_spike, spikes_in
from p2ptrain.notify.targets import CAUSES
from p2ptrain.observe.series import StepRow
from p2ptrain.observe.series.rows import KINDS
from tests.notify.made import event

LOSSES = st.lists(st.floats(0.01, 100), min_size=5, max_size=40)


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("stall", "This node is waiting for one more participant.", "stalled"),
        ("branch", "This node is on a branch.", "stalled"),
        ("end", "The run is complete.", "ended"),
        ("warning", "The disk may soon be full (DISK-LOW).", "disk"),
        ("warning", "The members continued without this node (SYNC-DROPPED).", "dropped"),
        ("warning", "A peer is called (DISK-LOW). It is new (RUN-OLD).", ""),
        ("lost", "sunny-koala is not heard any more.", ""),
        ("join", "A peer (DISK-LOW).", ""),
    ],
)
def test_event_has_a_cause(kind: str, text: str, cause: str) -> None:
    assert cause_of(event(kind, text)) == cause


def test_tables_name_kinds_codes_and_causes_that_exist() -> None:
    assert set(BY_KIND) <= KINDS
    assert set(BY_CODE) <= set(CODES)
    assert {*BY_KIND.values(), *BY_CODE.values()} == {*CAUSES} - {"pending"}


@given(LOSSES, st.floats(0, 1.29))
def test_loss_near_or_below_the_lowest_is_never_a_spike(losses: list[float], share: float) -> None:
    assert not is_spike(losses, share * min(losses[-20:]))


@given(LOSSES, st.floats(1.31, 1e6))
def test_loss_above_the_factor_of_the_highest_is_a_spike(losses: list[float], times: float) -> None:
    assert is_spike(losses, times * max(losses[-20:]))


@given(LOSSES, st.floats(0, 200), st.floats(0.001, 1000))
def test_unit_of_the_loss_does_not_matter(losses: list[float], newest: float, unit: float) -> None:
    middle = sorted(losses[-20:])
    edges = (1.3 * middle[(len(middle) - 1) // 2], 1.3 * middle[len(middle) // 2])
    if not edges[0] * 0.999 < newest < edges[1] * 1.001:
        scaled = [loss * unit for loss in losses]
        assert is_spike(losses, newest) == is_spike(scaled, newest * unit)


@given(LOSSES, st.lists(st.sampled_from([math.nan, math.inf, -math.inf])), st.floats(0, 200))
def test_infinite_losses_in_the_past_do_not_count(
    losses: list[float], infinite: list[float], newest: float
) -> None:
    assert is_spike([*losses, *infinite], newest) == is_spike(losses, newest)


@given(st.lists(st.floats(0.1, 100), max_size=4), st.floats(0, 1e9))
def test_first_losses_of_a_run_are_no_spikes(losses: list[float], newest: float) -> None:
    assert not is_spike(losses, newest)
    assert is_spike(losses, math.nan)


def test_spike_is_told_once_when_its_reports_are_complete() -> None:
    rows = [StepRow(step, loss=2.0 + step / 100) for step in range(1, 11)]
    rows += [StepRow(11, loss=3.4), StepRow(12, loss=2.1)]
    assert spikes_in(rows, 5) == (10, "")
    rows.append(StepRow(13, loss=2.1))
    text = (
        "The training loss, as members report it, of outer step 11 is 3.400; "
        "the median of the outer steps before is 2.055."
    )
    assert spikes_in(rows, 10) == (11, text)
    assert spikes_in(rows, 11) == (11, "")
    assert spikes_in([], 7) == (7, "")


def test_held_out_loss_is_compared_with_held_out_losses() -> None:
    rows = [StepRow(step, loss=2.0, held_out=3.0 if step % 5 == 0 else None) for step in range(90)]
    assert spikes_in(rows, 20) == (87, "")
    rows[80] = StepRow(80, loss=2.0, held_out=4.5)
    _, text = spikes_in(rows, 20)
    assert text.startswith("The held-out loss of outer step 80 is 4.500")


def test_history_that_members_told_is_not_news() -> None:
    rows = [StepRow(step, loss=2.0, told_by="someone") for step in range(1, 10)]
    rows += [StepRow(10, loss=9.0, told_by="someone"), StepRow(11, loss=2.0), StepRow(12, loss=4.0)]
    assert spikes_in([*rows, StepRow(13)], 0) == (11, "")
    step, text = spikes_in([*rows, StepRow(14)], 0)
    assert (step, "of outer step 12 is 4.000; the median" in text) == (12, True)
