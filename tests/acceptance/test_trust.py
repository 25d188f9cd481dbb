"""The bounds that `scripts/trust` prints, and the registry of its parts."""

from __future__ import annotations

import pytest

from tests.acceptance.trust.shares import Share


def test_bound_of_zero_events_follows_the_rule_of_three() -> None:
    assert Share(0, 200).at_most() == "0 of 200 (95 % bound: 1.5 %)"
    assert Share(200, 200).at_least() == "200 of 200 (95 % bound: 98.5 %)"
    assert Share(0, 200).at_least() == "0 of 200 (95 % bound: 0.0 %)"


def test_bounds_of_other_counts_contain_the_share() -> None:
    found = Share(5, 100)
    assert found.lower < 0.05 < found.upper
    assert found.upper == pytest.approx(0.099, abs=0.001)
    assert Share(95, 100).lower == pytest.approx(1 - found.upper)
