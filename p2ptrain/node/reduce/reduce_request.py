"""The terms of a reduce, and the conditions under which this node takes part in it."""

from __future__ import annotations

from p2ptrain.archive.contribution_weights import weights
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ReduceAborted
from p2ptrain.identity import verify
from p2ptrain.ids import RunId
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.signed_sums import SumSigner
from p2ptrain.ring import ReduceRequest, streams_for
from p2ptrain.ring.wait_for import reduce_deadline_s

DOUBT_STEPS = 8
"""Number of outer steps after which a wrong sum is no longer a reason to fail an attempt."""


def request_of(context: Context, outer_step: OuterStep, roster: Roster) -> ReduceRequest:
    """Return the terms of the reduce that `roster` opens, for this participant."""
    update, payload_bytes = outer_step.update, outer_step.update.payload_bytes
    return ReduceRequest(
        # This id differs between branches of the ledger, so their attempts cannot be confused.
        run=RunId(context.ledger.snapshot.line),
        step=roster.step,
        attempt=roster.attempt,
        peers=roster.peers,
        me=roster.peers.index(context.me),
        weights=weights(
            context.ledger.history, context.ledger.snapshot.since, roster, len(context.fragments)
        ),
        numel=update.numel,
        codec=update.codec,
        schedule=roster.schedule,
        streams=streams_for(roster.schedule, len(roster.peers), payload_bytes),
        influence_max=update.influence_max,
        deadline_s=reduce_deadline_s(payload_bytes),
        signed=context.ledger.rules.claims,
    )


def signer_of(context: Context, roster: Roster) -> SumSigner | None:
    """Return what signs our sums in the reduce of `roster`; None in a run without claims."""
    if not context.ledger.rules.claims:
        return None
    # While a reduce is open, the newest entry is the roster that opened it.
    assert context.ledger.snapshot.roster == roster
    return SumSigner(context.ledger.snapshot.head, context.me, context.identity.sign, verify)


def refuse_liars(context: Context, roster: Roster) -> None:
    """Raise ReduceAborted if `roster` includes a participant that signed a wrong sum in an earlier
    outer step, as this node has found out. It is accused once for each outer step in which it lied.
    """
    found = context.reduce.liars
    liars = tuple(
        each for each in roster.peers if roster.step - found.get(each, -99) <= DOUBT_STEPS
    )
    for each in roster.peers:
        context.reduce.liars.pop(each, None)
    if liars:
        names = " and ".join(map(label, liars))
        what = f"{names} signed a wrong sum in an earlier exchange"
        raise ReduceAborted(roster.step, roster.attempt, liars, what)
