"""Events that a member has told this node, as sentences.

A member tells the kind of an event and the peer that it is about, and no text. This node writes the
sentence itself, so a liar cannot choose its words.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name
from p2ptrain.observe.series.rows import EventRow, ToldEventRow

ABOUT_PEERS = {
    "join": "{peer} joined",
    "leave": "{peer} left",
    "lost": "{peer} dropped out, or was not heard for a while",
}
ABOUT_THE_RUN = {
    "amendment": "the members agreed on an amendment",
    "skip": "the members skipped outer step {step}",
    "retry": "the exchange of outer step {step} was repeated",
    "snapshot": "the members certified a snapshot",
    "end": "the run ended",
}
"""The kinds of events that members tell newcomers. The other kinds concern only the node that has
recorded them, such as its pauses and its warnings."""

SENTENCES = ABOUT_PEERS | ABOUT_THE_RUN


def as_event(row: ToldEventRow) -> EventRow:
    """Return the event with a sentence that says whose word it is."""
    peer = label(PeerId(row.peer)) if row.peer else ""
    what = SENTENCES.get(row.kind, "something happened").format(peer=peer, step=row.step)
    text = f"As reported by {peer_name(PeerId(row.told_by))}: {what}."
    return EventRow(row.time, row.step, row.kind, row.peer, text)
