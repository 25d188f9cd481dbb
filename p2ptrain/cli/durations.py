"""Durations that users write, such as 30d, and ages that commands show."""

from __future__ import annotations

import re

from p2ptrain.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9]\d{0,6})\s*(s|min|m|h|d|w)", re.ASCII)
DURATION_MAX_S = 3650 * 86_400


def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as "90min", "12h", "30d" or "2w".

    Raises ConfigError: `text` is not a duration, or is longer than ten years."""
    match = _DURATION.fullmatch(text.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= DURATION_MAX_S:
        raise ConfigError(
            f"{text[:40]!r} is not a duration of at most ten years",
            do="write a number and a unit: 90min, 12h, 30d or 2w",
        )
    return seconds


def age(seconds: float) -> str:
    """Return a duration in words with one unit, rounded down."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(max(0.0, seconds))} s"
