"""How long a fetch waits for a chunk before it asks another source as well."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_MIN_S = 0.5
PATIENCE_UNKNOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a requested chunk before it is also requested on another lane (another
    connection to a source): `factor` times the usual time, but at least `least_s`. Until the first
    chunk has arrived, the limit is `unknown_s`, the time that a chunk takes at 7 Mbit/s.
    """

    factor: float = 3.0
    least_s: float = PATIENCE_MIN_S
    unknown_s: float = PATIENCE_UNKNOWN_S


PATIENCE = Patience()
