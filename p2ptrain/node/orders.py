"""What the trainer should be told next, as a pure function of what it was told and what is agreed.

The ledger's lease says which blocks are ours and uncommitted. From it alone follows whether our
last work was taken: if the blocks we gave the trainer still head the lease, nobody has committed
them, and the work must be kept and re-based; if they have left it, the work is in θ (or was given
back to others), and the trainer starts from θ.

    trainer was told       now agreed            orders
    ──────────────────     ──────────────────    ──────────────────────────────────────────
    nothing                step s, lease B       Load(s), Train(B)
    step s, blocks B       step s, lease B       –
    step s, blocks B       step s+1, B + C       Rebase(s+1), Train(C)      left out, or Skip
    step s, blocks B       step s+1, C           Load(s+1), Train(C)        committed
    step s, blocks B       no lease              – (stand by)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Desk:
    """What the trainer was last told: θ of which step, and the blocks it was given on top of it."""

    step: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What lies in the arena's `local`: `blocks` trained on θ of outer step `step`.

    It may be averaged as long as no order was given that lets a trainer write there again.
    """

    step: int
    blocks: tuple[int, ...]
    tokens: int

    def stands_for(self, step: int, lease: tuple[int, ...]) -> bool:
        """Whether it is all that this lease asks for in outer step `step`."""
        return self.step == step and self.blocks == lease


@dataclass(frozen=True, slots=True)
class LoadOrder:
    step: int


@dataclass(frozen=True, slots=True)
class RebaseOrder:
    step: int


@dataclass(frozen=True, slots=True)
class TrainOrder:
    step: int
    blocks: tuple[int, ...]


Order = LoadOrder | RebaseOrder | TrainOrder


def next_orders(desk: Desk | None, step: int, lease: tuple[int, ...]) -> list[Order]:
    """The orders that bring a trainer from `desk` to outer step `step` with `lease`."""
    if not lease:
        return []
    if desk is None or lease[: len(desk.blocks)] != desk.blocks:
        return [LoadOrder(step), TrainOrder(step, lease)]
    orders: list[Order] = []
    if desk.step != step:
        orders.append(RebaseOrder(step))
    if more := lease[len(desk.blocks) :]:
        orders.append(TrainOrder(step, more))
    return orders


def after(desk: Desk | None, order: Order) -> Desk:
    """The desk once `order` was given."""
    if isinstance(order, LoadOrder):
        return Desk(order.step, ())
    assert desk is not None, "the first order is always Load"
    if isinstance(order, RebaseOrder):
        return Desk(order.step, desk.blocks)
    return Desk(order.step, desk.blocks + order.blocks)
