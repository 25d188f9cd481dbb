"""The schedule on which fragments are read and merged, as the paper's rule and as a table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.sync import DueSteps, SyncSchedule, SyncSpec


def drawn(schedule: SyncSchedule, steps: int) -> list[str]:
    """Return one line for each fragment: r where it is read, m where it is merged, b where both
    happen."""
    lines = [["."] * steps for _ in range(schedule.fragments)]
    for done in range(1, steps + 1):
        due = schedule.due(done)
        for step, mark in ((due.read, "r"), (due.merge, "m")):
            if step is not None:
                line = lines[schedule.fragment_of(step)]
                line[done - 1] = "b" if line[done - 1] == "r" else mark
    return ["".join(line) for line in lines]


def test_streaming_schedule_with_three_fragments() -> None:
    assert drawn(SyncSchedule(6, 3, 1), 15) == [
        ".rm....rm....rm",
        "...rm....rm....",
        ".....rm....rm..",
    ]


def test_plain_schedule_reads_and_merges_in_the_same_step() -> None:
    assert drawn(SyncSchedule(4), 13) == ["...b...b...b."]


def test_schedule_delayed_by_one_step_reads_before_it_merges_the_previous_read() -> None:
    schedule = SyncSchedule(4, 1, 4)
    assert [schedule.due(done) for done in (4, 8, 12)] == [
        DueSteps(0, None),
        DueSteps(1, 0),
        DueSteps(2, 1),
    ]
    assert schedule.due(7) == DueSteps(None, None)
    assert schedule.delayed
    assert not SyncSchedule(4, 2, 2).delayed, "a fragment is merged before it is read again"


@given(
    stride=st.integers(1, 12),
    fragments=st.integers(1, 6),
    done=st.integers(1, 300),
    data=st.data(),
)
def test_schedule_follows_the_rule_of_the_paper(
    stride: int, fragments: int, done: int, data: st.DataObject
) -> None:
    """Fragment p is read when (t − t_p) mod H = 0, and merged when (t − t_p − τ) mod H = 0, t ≥
    τ.
    """
    overlap = data.draw(st.integers(0, stride))
    schedule = SyncSchedule(stride * fragments, fragments, overlap)
    due, period = schedule.due(done), stride * fragments
    offsets = [(p + 1) * stride for p in range(fragments)]
    read = [p for p in range(fragments) if (done - offsets[p]) % period == 0]
    merged = [p for p in range(fragments) if (done - offsets[p] - overlap) % period == 0]
    begun = [p for p in merged if done - overlap > 0]
    assert [schedule.fragment_of(due.read)] == read if due.read is not None else not read
    assert ([] if due.merge is None else [schedule.fragment_of(due.merge)]) == begun
    assert due.read is None or (due.read + 1) * schedule.stride == done
    assert due.merge is None or (due.merge + 1) * schedule.stride + overlap == done


@pytest.mark.parametrize(("steps", "fragments", "overlap"), [(10, 4, 0), (8, 4, 3), (8, 1, 9)])
def test_schedule_that_does_not_fit_the_inner_steps_is_refused(
    steps: int, fragments: int, overlap: int
) -> None:
    with pytest.raises(ValueError, match="inner steps"):
        SyncSchedule(steps, fragments, overlap)


@pytest.mark.parametrize(
    "numbers",
    [
        {"fragments": 0},
        {"overlap_steps": -1},
        {"overlap_steps": 1, "mixing": 1.0},
        {"mixing": 0.5},
        {"eager": True},
        {"overlap_steps": 4, "mixing": 0.5, "eager": True},
        {"overlap_steps": 1, "fragments": 2, "eager": True},
    ],
)
def test_parameters_that_match_no_sync_mode_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sync mode is not valid"):
        SyncSpec(**numbers)


def test_each_of_the_three_modes_has_a_schedule() -> None:
    modes = [SyncSpec(), SyncSpec(4, 5, 0.5), SyncSpec(1, 20, eager=True)]
    assert [SyncSchedule.of(mode, 20) for mode in modes] == [
        SyncSchedule(20, 1, 0),
        SyncSchedule(20, 4, 5),
        SyncSchedule(20, 1, 20),
    ]
