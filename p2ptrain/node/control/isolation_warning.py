"""Warn when this node does not hear a quorum of the voters: then nothing can be agreed.

This module only warns. The ledger decides what to do: it waits, or branches if the run allows it.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import label
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution

LOOK_S = 2.0
PATIENCE_S = 10.0
"""Seconds without a quorum before the warning: five heartbeats, in which every peer that is up is
heard. """

NAMED_MAX = 8

WARNING = "isolated"
ALONE = Caution(
    "ISOLATED",
    "this node hears too few voters for the members to agree on anything",
    "if this lasts, check this machine's network connection; nothing is lost, and the run "
    "continues when the voters are back",
)


async def notice_isolation(parts: Parts) -> None:
    """Keep `standing.isolated` up to date until cancelled."""
    alone_since: float | None = None
    while True:
        missing = unheard(parts)
        alone_since = None if not missing else parts.now() if alone_since is None else alone_since
        isolated = alone_since is not None and parts.now() >= alone_since + PATIENCE_S
        reason = in_words(parts, missing) if isolated else ""
        if reason != parts.standing.isolated:
            parts.standing.isolated = reason
            _warn(parts)
            parts.journal.write("isolated", reason=reason)
            parts.changes.ring()
        await parts.changes.wait(at_most_s=LOOK_S)


def _warn(parts: Parts) -> None:
    """Set or remove the warning. Its text does not name the missing voters, since they change; the
    state names them."""
    if parts.standing.isolated:
        parts.standing.warnings[WARNING] = ALONE
    else:
        parts.standing.warnings.pop(WARNING, None)


def unheard(parts: Parts) -> tuple[PeerId, ...]:
    """If the voters that we hear on our line are not a quorum, return the other voters."""
    state = parts.ledger.state
    if state.phase is Phase.ENDED:
        return ()
    here = {
        view.peer
        for view in parts.peers
        if view.heartbeat.line == state.line and not parts.is_down(view.peer)
    }
    return quorum.missing(parts.ledger.rules.quorum, state.voters, here | {parts.me})


def in_words(parts: Parts, missing: tuple[PeerId, ...]) -> str:
    """Return words like "3 of 5 voters cannot be heard: brave-otter (…Xk3f9Q), …".

    Voters off the allowlist are named separately: they return only if the organiser admits them
    again.
    """
    names = ", ".join(label(peer) for peer in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if missing[NAMED_MAX:] else ""
    voters = len(parts.ledger.state.voters)
    words = f"{len(missing)} of {voters} voters cannot be heard: {names}{more}"
    off = [label(peer) for peer in missing if not parts.admission.admits(peer)]
    if off:
        words += f"; not heard because they are not on the allowlist: {', '.join(off[:NAMED_MAX])}"
    return words
