"""Describe a branch in words, and warn the user while this node is on one.

On a branch, the voters that remain after the loss of the quorum continue the ledger separately.
"""

from __future__ import annotations

from p2ptrain.errors import counted
from p2ptrain.ledger.chain.values import Branch
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.queries import branch_words
from p2ptrain.names import named
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution


def in_words(text: str, ledger: Ledger) -> str:
    """Return `text`, which describes the branch, with names instead of peer ids, and with the
    number of lost voters."""
    past = ledger.state.past
    if not text or not past:
        return named(text)
    gone = len(past[-1].gone)
    entry = ledger.kept.at(past[-1].height + 1)
    here = entry.entry.value.voters if entry and isinstance(entry.entry.value, Branch) else ()
    lost = f"{gone} of {counted(gone + len(here), 'voter')}" if here else counted(gone, "voter")
    return f"{named(text)}; {lost} {'is' if gone == 1 else 'are'} gone"


def warn(context: Context) -> None:
    """Update the warning about the branch. The ledger's task calls this after each entry."""
    words = in_words(branch_words(context.ledger.snapshot), context.ledger.core)
    alerts, caution = context.alerts, Caution("BRANCH", words)
    if not words:
        alerts.clear("branch")
    elif alerts.warnings.get("branch") != caution:
        alerts.show("branch", caution)
        context.journal.write("branch", what=words)
