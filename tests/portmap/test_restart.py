"""A router's clock shows whether it has restarted, in spite of delays and of clocks that drift."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.portmap.restart import RouterClock


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "restarted"),
    [
        (120, 120, False),
        (120, 114, False),
        (120, 126, False),
        (0, -1, False),
        (0, -2, True),
        (120, 90, True),
        (120, 180, True),
        (1800, -5000, True),
        (1800, 1700, False),
        (1800, 900, True),
    ],
)
def test_restart_is_a_clock_that_ran_differently(
    ours_s: int, theirs_s: int, restarted: bool
) -> None:
    before = RouterClock(10_000, 50.0)
    assert before.restarted_before(RouterClock(10_000 + theirs_s, 50.0 + ours_s)) is restarted


@given(st.floats(0, 1e6), st.floats(0.95, 1.05), st.floats(0, 0.9))
def test_clock_that_drifts_by_a_twentieth_has_not_restarted(
    ours_s: float, rate: float, delay_s: float
) -> None:
    shown = 1000 + int(ours_s * rate + delay_s)
    assert not RouterClock(1000, 0.0).restarted_before(RouterClock(shown, ours_s))
