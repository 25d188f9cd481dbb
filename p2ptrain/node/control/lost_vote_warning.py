"""Warn the owner of a founder's seed that no longer votes.

A founder that stops says goodbye, and the members may then continue without it. In an open run it
asks to come back when it starts again. In other runs only peers that train become voters, so a seed
never votes again, and its owner should know.
"""

from __future__ import annotations

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

WARNING = "lost vote"
LOST_VOTE = Caution(
    "VOTE-LOST",
    "this node is a founder of the run, but it is no longer a member, so it does not vote; the "
    "members went on without it after it stopped, and a seed cannot become a voter again",
    "it still serves the run; to vote again, start it without --seed, so that it takes part in the "
    "training",
)


def has_lost_vote(context: Context) -> bool:
    """Return whether this node is a founder's seed that cannot become a voter again."""
    state, manifest = context.ledger.snapshot, context.manifest
    founds = context.me in manifest.founders and not manifest.founders_vote
    runs = state.phase is not Phase.ENDED and not context.state.leaving
    return founds and runs and not context.trains and not state.is_member(context.me)


async def notice_lost_vote(context: Context) -> None:
    """Keep the warning up to date until cancelled.

    After each Commit, θ lacks the newest update for a moment. A node whose θ is behind may still be
    catching up, so it does not begin to warn; it does not end its warning for that reason either,
    because every Commit would then be followed by a new warning."""
    while True:
        lost = has_lost_vote(context)
        if lost and context.at_head() and WARNING not in context.alerts:
            context.alerts.show(WARNING, LOST_VOTE)
            context.journal.write("vote-lost", what=LOST_VOTE.what)
            context.changes.notify_all()
        elif not lost and WARNING in context.alerts:
            context.alerts.clear(WARNING)
            if context.ledger.snapshot.is_member(context.me):
                context.journal.write("vote-back")
            context.changes.notify_all()
        await context.changes.wait()
