"""The numbers that name a sync mode. They are checked on construction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncSpec:
    """`fragments` (P) are synchronised one after another. A fragment is merged `overlap_steps` (τ)
    inner steps after it was read, and then local weights keep a share of `mixing` (α).

    `eager` requires an overlap of a whole outer step; see `Eager`.

    Raises ValueError for numbers that name no mode.
    """

    fragments: int = 1
    overlap_steps: int = 0
    mixing: float = 0.0
    eager: bool = False

    def __post_init__(self) -> None:
        _check(self.fragments >= 1, f"{self.fragments} fragments are not possible")
        _check(
            self.overlap_steps >= 0,
            f"an overlap of {self.overlap_steps} inner steps is not possible",
        )
        _check(0 <= self.mixing < 1, f"a mixing of {self.mixing} is not possible")
        late = self.overlap_steps > 0
        _check(late or self.mixing == 0, "mixing needs an overlap")
        _check(late or not self.eager, "eager needs an overlap")
        _check(not self.eager or self.mixing == 0, "eager excludes mixing")
        _check(not self.eager or self.fragments == 1, "eager allows one fragment only")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"this sync mode is not valid: {what}")
