"""No single example of a Hypothesis test has a time limit. `tests/conftest.py` gives the reason."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, settings

from tests.architecture.sources import ROOT

_CLOCK = re.compile(r"@settings\([^)]*\bdeadline=(?!None)")


def test_no_hypothesis_example_has_a_deadline() -> None:
    usual = settings.default
    assert usual is not None
    assert usual.deadline is None
    assert HealthCheck.too_slow in usual.suppress_health_check
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert [file.name for file in files if _CLOCK.search(file.read_text())] == []
