"""Compute the next orders for the trainer: a pure function of earlier orders and the agreed state.

Our lease in the ledger lists our uncommitted blocks. So it shows whether our last work was
committed. If the lease still begins with the blocks that we gave the trainer, they have not been
committed, and the work must be kept and moved to the new θ (rebased). If the offered blocks are no
longer in the lease, they are in θ. (Blocks are offered when the trainer reports that they are
ready to be averaged.)

    trainer was told       now agreed            orders
    ──────────────────     ──────────────────    ──────────────────────────────────────────
    nothing                step s, lease B       Load(s), Train(B)
    step s, blocks B       step s, lease B       –
    step s, blocks B       step s+1, B + C       Rebase(s+1), Train(C)      left out, or Skip
    step s, blocks B       step s+1, C           Merge(s+1), Train(C)       committed
    step s, blocks B       step s+1, D           Load(s+1), Train(D)        lost to others
    step s, blocks B       no lease              – (stand by)

If training continues while an outer step is agreed (an overlap of τ inner steps), a lease also
contains the next outer step's blocks: of `B + C`, only B is due. Once B is offered, the first τ
blocks of C are trained ahead; then the trainer waits for θ. If B was not accepted, all of `B + C`
is due next.

    step s, B, offered     step s, lease B+C     Ahead(C[:τ])
    step s, B + C[:τ]      step s+1, C + D       Merge(s+1), Train(C[τ:])   committed
    step s, B + C[:τ]      step s+1, B + C + D   Rebase(s+1), Train(C[τ:])  left out, or Skip
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """The trainer's state after its last orders: the step of its θ, and the blocks that it was
    given to train on from there.

    `carried` is the number of blocks that it reported as ready at earlier steps and that were not
    committed; they are the first ones in `blocks`. `offered` is the number of blocks, again from
    the first, that it reported as ready at this step; it is 0 until the trainer is ready.
    """

    step: int
    blocks: Blocks
    carried: int = 0
    offered: int = 0
    is_ahead: bool = False
    """Whether the trainer trains, or has trained, more blocks than it reported as ready."""
    is_exact: bool = field(default=False, compare=False)
    """Whether all work on `blocks` began at exactly the θ of `step`, and was never moved."""

    def due(self, lease: Blocks, pace: LeasePace) -> Blocks:
        """Return the blocks of `lease` that the trainer must finish next. Without overlap, that is
        the whole lease.

        With overlap, these blocks include all that the trainer was already given, even if an
        amendment has since reduced the number of blocks in an outer step.
        """
        whole = max(self.carried + pace.stride, len(self.blocks))
        return lease[:whole] if pace.overlap else lease


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The content of the arena's `local`: `blocks`, trained from the θ of outer step `step`.

    It may be averaged until an order allows a trainer to write to `local` again.
    """

    step: int
    blocks: Blocks
    tokens: int

    def stands_for(self, step: int, lease: Blocks, pace: LeasePace) -> bool:
        """Return whether this work is all that the lease asks for in outer step `step`."""
        whole = len(self.blocks) if pace.overlap else len(lease)
        return self.step == step and self.blocks == lease[:whole]


@dataclass(frozen=True, slots=True)
class LeasePace:
    """`stride` is the number of blocks per outer step. `overlap` (τ) is the number of blocks of the
    next outer step that are trained ahead."""

    stride: int
    overlap: int = 0


@dataclass(frozen=True, slots=True)
class LoadOrder:
    step: int


@dataclass(frozen=True, slots=True)
class MergeOrder:
    step: int


@dataclass(frozen=True, slots=True)
class RebaseOrder:
    step: int


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Train on these blocks too, then report FragmentReady."""

    step: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class AheadOrder:
    """Train on these blocks too, while the offered work is averaged."""

    step: int
    blocks: Blocks


Order = LoadOrder | MergeOrder | RebaseOrder | TrainOrder | AheadOrder


def next_orders(
    progress: TrainerProgress | None,
    step: int,
    lease: Blocks,
    pace: LeasePace,
    *,
    taken: bool = True,
) -> list[Order]:
    """Return the orders that take a trainer from `progress` to outer step `step` with `lease`.

    `taken`: the outer step of `progress` was committed and includes our work.
    """
    if not lease:
        return []
    if (
        progress is not None
        and progress.step == step
        and lease[: len(progress.blocks)] == progress.blocks
    ):
        return _same_step(progress, lease, pace)
    first = _change(progress, step, lease, taken)
    there = progress_after(progress, first)
    more = there.due(lease, pace)[len(there.blocks) :]
    if not more and isinstance(first, RebaseOrder) and not there.is_ahead:
        return [first]  # The trainer becomes ready without an order, or is ready and says so again.
    return [first, TrainOrder(step, more)]


def _change(progress: TrainerProgress | None, step: int, lease: Blocks, taken: bool) -> Order:
    """Return the order that takes the trainer to the θ of `step`."""
    if progress is None:
        return LoadOrder(step)
    if lease[: len(progress.blocks)] == progress.blocks:
        return RebaseOrder(step)
    rest = progress.blocks[progress.offered :]
    if taken and progress.offered and progress.step < step and lease[: len(rest)] == rest:
        return MergeOrder(step)
    return LoadOrder(step)


def _same_step(progress: TrainerProgress, lease: Blocks, pace: LeasePace) -> list[Order]:
    if more := progress.due(lease, pace)[len(progress.blocks) :]:
        return [TrainOrder(progress.step, more)]
    ahead = lease[len(progress.blocks) : progress.offered + pace.overlap]
    return [AheadOrder(progress.step, ahead)] if progress.offered and ahead else []


def progress_after(progress: TrainerProgress | None, order: Order) -> TrainerProgress:
    """Return the progress after `order` has been given."""
    if isinstance(order, LoadOrder):
        return TrainerProgress(order.step, (), is_exact=True)
    assert progress is not None, "the first order is always Load"
    match order:
        case MergeOrder(step):
            ahead = progress.blocks[progress.offered :]
            return TrainerProgress(step, ahead, is_exact=not ahead)
        case RebaseOrder(step):
            return TrainerProgress(
                step, progress.blocks, max(progress.carried, progress.offered), 0, progress.is_ahead
            )
        case TrainOrder(step, blocks):
            done = progress.blocks + blocks
            return TrainerProgress(step, done, progress.carried, is_exact=progress.is_exact)
        case AheadOrder(_, blocks):
            return replace(progress, blocks=progress.blocks + blocks, is_ahead=True)
