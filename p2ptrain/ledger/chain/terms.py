"""The terms (amendments of the run's settings) in force in each outer step.

The ledger does not know what an amendment says. It knows the amendment's digest, its number, and
the outer step from which it is in force. It also knows three effects: the number of blocks in a
lease from then on, the delegates (peers that may vote in addition to the founders of an open run),
and the end of the run. An amendment is agreed when a roster of an earlier outer step names it. So
the terms of an outer step never change once training for it has begun.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from p2ptrain.ledger.chain.values import TERMS_MAX, Roster, Terms, Value


def amendment_fault(agreed: tuple[Terms, ...], step: int, terms: Terms) -> str:
    """Return the reason why a roster of outer step `step` cannot name the amendment `terms` after
    those in `agreed`; empty if it can.

    Along a chain, each amendment has a higher number and a later step than the one before it.
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
    """Return the amendments in force in outer step `step`, the oldest first."""
    return tuple(each for each in agreed if each.step <= step)


def lease_blocks(agreed: tuple[Terms, ...], step: int, first: int) -> int:
    """Return the lease size, in blocks, for outer step `step`. The run began with `first`."""
    sizes = [each.blocks for each in in_force(agreed, step) if each.blocks is not None]
    return sizes[-1] if sizes else first


def is_over(agreed: tuple[Terms, ...], step: int) -> bool:
    """Return whether an amendment has ended the run before outer step `step`."""
    return any(each.stops for each in in_force(agreed, step))


def amended(value: Value, agreed: tuple[Terms, ...], known: Collection[Terms]) -> Value:
    """Return the roster `value` with the next amendment in `known` that it can name, if there is
    one. Return any other value unchanged.
    """
    if not isinstance(value, Roster):
        return value
    fit = [each for each in known if not amendment_fault(agreed, value.step, each)]
    if not fit:
        return value
    return replace(value, terms=min(fit, key=lambda each: (each.number, each.digest)))
