"""The part of a manifest that says how contributions are checked.

A manifest leaves this part out if it has its defaults, so manifests of earlier versions keep their
bytes and their digests. In their runs nothing is checked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrustRules:
    """`claims`: every contribution is quantised once, and its peer signs a claim about it before it
    takes part in an average. So anybody can recompute the update from the contributions (the
    ledger's SPEC.md, C1 to C5).
    """

    claims: bool = False

    def __post_init__(self) -> None:
        if type(self.claims) is not bool:
            raise ValueError("trust.claims is not true or false")


NOTHING_CHECKED = TrustRules()
