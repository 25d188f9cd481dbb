"""Which terms hold in which outer step: what the rosters of a chain said about it.

A run may be amended in its course. What an amendment says is no matter of the ledger: it knows its
digest, its number, from which outer step on it holds, and how many blocks a lease has then.

    roster of s names (number, step, digest, blocks)     : agreed, as step > s; its voters have it
    outer steps before `step`                            : as before
    outer steps from `step` on                           : these terms, added to the others

A roster settles later steps only, so nobody who trains is told of other terms than it began with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from p2ptrain.ledger.chain.values import TERMS_MAX, Roster, Terms, Value


def why_not(agreed: tuple[Terms, ...], step: int, terms: Terms) -> str:
    """Why `terms` cannot be agreed in outer step `step`, after those `agreed`; empty if they can.

    Numbers and steps both rise along a chain, so an older amendment never comes after a newer one.
    """
    if terms.step <= step:
        return f"amendment {terms.number} is for outer step {terms.step}, which has begun"
    if len(agreed) >= TERMS_MAX:
        return f"a run has at most {TERMS_MAX} amendments"
    if agreed and terms.number <= agreed[-1].number:
        return f"amendment {terms.number} comes after {agreed[-1].number}"
    if agreed and terms.step <= agreed[-1].step:
        return f"amendment {terms.number} is not later than that of outer step {agreed[-1].step}"
    return ""


def in_force(agreed: tuple[Terms, ...], step: int) -> tuple[Terms, ...]:
    """Those that hold in outer step `step`, the oldest first."""
    return tuple(each for each in agreed if each.step <= step)


def lease_blocks(agreed: tuple[Terms, ...], step: int, first: int) -> int:
    """How many blocks a member holds for outer step `step`; `first` is what the run began with."""
    sizes = [each.blocks for each in in_force(agreed, step) if each.blocks is not None]
    return sizes[-1] if sizes else first


def amended(value: Value, agreed: tuple[Terms, ...], known: Collection[Terms]) -> Value:
    """A roster that names the next of the amendments that this node has; all else as it is."""
    if not isinstance(value, Roster):
        return value
    fit = [each for each in known if not why_not(agreed, value.step, each)]
    if not fit:
        return value
    return replace(value, terms=min(fit, key=lambda each: (each.number, each.digest)))
