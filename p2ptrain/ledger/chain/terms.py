"""The terms (amendments) in force in each outer step, according to the rosters of a chain.

A run can be amended while it runs. The ledger does not know what an amendment says. It knows the
amendment's digest, its number, the outer step in which it takes effect, and the number of blocks in
a lease from then on.

    a roster of outer step s names (number, step, digest, blocks)   : agreed if step > s
    outer steps before `step`                                       : unchanged
    outer step `step` and later                                     : these terms are added

A roster can only change the terms of later steps, so the terms of a step never change once training
for it has begun.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from p2ptrain.ledger.chain.values import TERMS_MAX, Roster, Terms, Value


def amendment_fault(agreed: tuple[Terms, ...], step: int, terms: Terms) -> str:
    """Return the reason why `terms` cannot be agreed in outer step `step`, after those in `agreed`;
    empty if they can.

    Numbers and steps both rise along a chain, so an older amendment never comes after a newer one.
    """
    if terms.step <= step:
        return f"amendment {terms.number} is for outer step {terms.step}, which has begun"
    if len(agreed) >= TERMS_MAX:
        return f"a run has at most {TERMS_MAX} amendments"
    if agreed and terms.number <= agreed[-1].number:
        return f"amendment {terms.number} is not newer than amendment {agreed[-1].number}"
    if agreed and terms.step <= agreed[-1].step:
        return f"amendment {terms.number} must take effect after outer step {agreed[-1].step}"
    return ""


def in_force(agreed: tuple[Terms, ...], step: int) -> tuple[Terms, ...]:
    """Return the terms in force in outer step `step`, the oldest first."""
    return tuple(each for each in agreed if each.step <= step)


def lease_blocks(agreed: tuple[Terms, ...], step: int, first: int) -> int:
    """Return the number of blocks in a lease for outer step `step`. `first` is the number that the
    run began with.
    """
    sizes = [each.blocks for each in in_force(agreed, step) if each.blocks is not None]
    return sizes[-1] if sizes else first


def amended(value: Value, agreed: tuple[Terms, ...], known: Collection[Terms]) -> Value:
    """Add the next amendment that this node knows to a roster; return any other value unchanged."""
    if not isinstance(value, Roster):
        return value
    fit = [each for each in known if not amendment_fault(agreed, value.step, each)]
    if not fit:
        return value
    return replace(value, terms=min(fit, key=lambda each: (each.number, each.digest)))
