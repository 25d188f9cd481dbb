"""Warn when this node hears fewer voters than a quorum, so that it cannot agree on anything.

This module only warns. The ledger decides what to do: it waits, or, if the run allows branches, the
voters that remain continue on a branch of their own.
"""

from __future__ import annotations

from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

LOOK_S = 2.0
PATIENCE_S = 10.0
"""Seconds without a quorum before the warning: five heartbeats, enough to hear every peer that is
up."""

NAMED_MAX = 8

WARNING = "isolated"
ALONE = Caution(
    "ISOLATED",
    "this node hears too few voters for the members to agree on anything",
    "if this lasts, check this machine's network connection; nothing is lost, and the run "
    "continues when the voters are back",
)


async def notice_isolation(
    context: Context, *, patience_s: float = PATIENCE_S, look_s: float = LOOK_S
) -> None:
    """Keep `state.isolated` and the warning up to date until cancelled."""
    alone_since: float | None = None
    while True:
        missing = unreachable_voters(context)
        alone_since = None if not missing else context.now() if alone_since is None else alone_since
        isolated = alone_since is not None and context.now() >= alone_since + patience_s
        reason = in_words(context, missing) if isolated else ""
        if reason != context.state.isolated:
            context.state.isolated = reason
            # The state names the missing voters. The warning does not, since they keep changing.
            if reason:
                context.alerts.show(WARNING, ALONE)
            else:
                context.alerts.clear(WARNING)
            context.journal.write("isolated", reason=reason)
            context.changes.notify_all()
        await context.changes.wait_calmly(at_most_s=look_s)


def unreachable_voters(context: Context) -> tuple[PeerId, ...]:
    """Return the voters that this node does not hear on its chain or branch. Return () if the
    voters that it hears are a quorum."""
    state = context.ledger.snapshot
    if state.phase is Phase.ENDED:
        return ()
    here = {
        record.peer
        for record in context.peers.table
        if record.heartbeat.line == state.line and not context.peers.is_down(record.peer)
    }
    return quorum.missing(context.ledger.rules.quorum, state.voters, here | {context.me})


def in_words(context: Context, missing: tuple[PeerId, ...]) -> str:
    """Return words like "3 of 5 voters cannot be heard: brave-otter (…Xk3f9Q), …".

    Voters that are not on the allowlist are named again at the end: they return only if the
    organiser admits them again."""
    names = ", ".join(label(peer) for peer in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if missing[NAMED_MAX:] else ""
    voters = counted(len(context.ledger.snapshot.voters), "voter")
    words = f"{len(missing)} of {voters} cannot be heard: {names}{more}"
    off = [label(peer) for peer in missing if not context.admission.may_train(peer)]
    if off:
        words += f"; not heard because they are not on the allowlist: {', '.join(off[:NAMED_MAX])}"
    return words
