"""The part of a manifest that says how contributions are checked.

A manifest leaves this part out if it has its defaults, so manifests of earlier versions keep their
bytes and their digests. In their runs nothing is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

ONE_IN_MAX = 1 << 20
"""Largest number of links or outcomes of which one is checked. A larger number means never."""


@dataclass(frozen=True, slots=True)
class TrustRules:
    """`claims`: every contribution is quantised once, and its peer signs a claim about it before it
    takes part in an average. So anybody can recompute the update from the contributions (the
    ledger's SPEC.md, C1 to C5).

    `audits`: auditors check claims, and can exclude peers from averages (A1 to A8). Of the links of
    the chains of checkpoints, they open one in `links_one_in`. Of the outcomes, they judge one in
    `outcomes_one_in`. No run file can set these fields yet, because nodes do not audit yet.
    """

    claims: bool = False
    audits: bool = False
    links_one_in: int = 16
    outcomes_one_in: int = 4

    def __post_init__(self) -> None:
        for name in ("claims", "audits"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"trust.{name} is not true or false")
        for name in ("links_one_in", "outcomes_one_in"):
            number = getattr(self, name)
            if type(number) is not int or not 1 <= number <= ONE_IN_MAX:
                raise ValueError(f"trust.{name} is not a number from 1 to {ONE_IN_MAX}")
        if self.audits and not self.claims:
            raise ValueError("trust.audits is true, but trust.claims is false")


LATER_FIELDS = ("audits", "links_one_in", "outcomes_one_in")
"""The fields that a manifest leaves out if they have their defaults, as in earlier versions."""

NOTHING_CHECKED = TrustRules()
