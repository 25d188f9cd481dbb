"""How long a fetch waits for a chunk before it asks another source as well."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_MIN_S = 0.5
PATIENCE_UNKNOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits on the time of a chunk, from the request, before another lane is asked too: `factor`
    times the usual time of a chunk, at least `least_s`. Until one has come, the limit is
    `unknown_s`: the time in which 7 Mbit/s bring one.
    """

    factor: float = 3.0
    least_s: float = PATIENCE_MIN_S
    unknown_s: float = PATIENCE_UNKNOWN_S


PATIENCE = Patience()
