"""What holds for all tests: generated examples take as long as they take.

Hypothesis gives an example 200 ms and a strategy a second, and fails a test of which one was slower
once: on a machine that others keep busy, or that stops for a moment, that says nothing of our code.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
