"""Decide whether this node can take part in the open reduce, and with which contribution."""

from __future__ import annotations

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.state.context import Context
from p2ptrain.ring import Difference, Source
from p2ptrain.sync.trainer_orders import LocalWork


def reduce_due(
    state: LedgerState,
    outer_step: int | None,
    me: PeerId,
    work: LocalWork | None,
    claim: Digest | None = None,
) -> Roster | None:
    """Return the open roster if we take part in its reduce and have the work that it names. `claim`
    is the digest of our claim about `work`, in a run with claims.

    A node that was restarted after it sent Ready has nothing to average: its local weights are
    empty until its trainer has done the work again. It must not contribute different work instead.
    So the other members wait until the work is ready again, or abandon the attempt.
    """
    roster = state.roster
    if roster is None or outer_step != roster.step or work is None or work.step != roster.step:
        return None
    ours = Participant(me, work.tokens, len(work.blocks), claim)
    lease = state.leases.get(me, ())
    if ours not in roster.participants or lease[: len(work.blocks)] != work.blocks:
        return None
    return roster


def reduce_impossible(
    state: LedgerState,
    outer_step: int | None,
    me: PeerId,
    said: Ready | None,
    work: LocalWork | None,
    claim: Digest | None = None,
) -> Roster | None:
    """Return the open roster if it includes work of ours that this process does not have.

    Either the work that we reported as ready (`said`) is lost, or the node was restarted and now
    has different `work`. In a run that trains while it averages, a restarted node has trained fewer
    blocks than before: it has lost those that it trained during the previous reduce. If the roster
    names a claim, then only that claim will do, and no trainer can repeat it.
    """
    roster = state.roster
    if (
        roster is None
        or outer_step != roster.step
        or reduce_due(state, outer_step, me, work, claim)
    ):
        return None
    if any(each.peer == me and each.claim not in (None, claim) for each in roster.participants):
        return roster
    ours = [(each.tokens, each.blocks) for each in roster.participants if each.peer == me]
    lost = said is not None and said.step == roster.step and (said.tokens, said.blocks) in ours
    other = work is not None and work.step == roster.step
    return roster if ours and (lost or other) else None


def source_of(
    context: Context, roster: Roster, outer_step: OuterStep, difference: Difference
) -> Source:
    """Return our contribution to the reduce of `roster`: the claimed bytes, or the `difference` in
    the arena in a run without claims. Raises ReduceAborted: we do not have the claimed bytes."""
    bound = next(each.claim for each in roster.participants if each.peer == context.me)
    if bound is None:
        return difference
    claimed = context.trainer.claimed
    held = claimed is not None and claimed.made.claim.digest == bound
    if claimed is None or not held or claimed.contribution.codec != outer_step.codec:
        what = "this node does not have the contribution that it claimed"
        raise ReduceAborted(roster.step, roster.attempt, (context.me,), what)
    return claimed.contribution
