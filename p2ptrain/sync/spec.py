"""The numbers that define a sync mode. They are checked on construction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncSpec:
    """A sync mode. The `fragments` (P) are synchronised one after another. A fragment is merged
    `overlap_steps` (τ) inner steps after it was read, and local weights then keep a share of
    `mixing` (α).

    `eager` is for an overlap of a complete outer step; see `Eager`.

    Raises ValueError if the numbers do not define a valid mode.
    """

    fragments: int = 1
    overlap_steps: int = 0
    mixing: float = 0.0
    eager: bool = False

    def __post_init__(self) -> None:
        _check(self.fragments >= 1, f"fragments must be at least 1, not {self.fragments}")
        _check(
            self.overlap_steps >= 0,
            f"overlap_steps must not be negative, but is {self.overlap_steps}",
        )
        _check(0 <= self.mixing < 1, f"mixing must be in [0, 1), but is {self.mixing}")
        late = self.overlap_steps > 0
        _check(late or self.mixing == 0, "mixing requires an overlap")
        _check(late or not self.eager, "eager requires an overlap")
        _check(not self.eager or self.mixing == 0, "eager cannot be combined with mixing")
        _check(not self.eager or self.fragments == 1, "eager requires a single fragment")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"this sync mode is not valid: {what}")
