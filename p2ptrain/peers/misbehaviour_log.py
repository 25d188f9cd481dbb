"""What peers can have us write into the journal: not each time, for their faults must not be our
disk's, nor push out of it what happened before.

It does not know what the events mean.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.observe.journal import Journal
from p2ptrain.rate_limit import Allowance

COMPLAINT_S = 10.0
COMPLAINTS_MAX = 1024

NOTES_PER_S = 0.1
NOTES_BURST = 32
"""Of the ledger's notes, those that one peer's words led to: in the long run as often as a
complaint, and whole stories in between.
"""

LINES_PER_S = 0.5
LINES_BURST = 256
"""Of one event, about whomever, since identities may cost nothing: without a break they fill the
journal in three days.
"""


class Complaints:
    """`now` may never go back."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._said: dict[tuple[str, str], tuple[int, float]] = {}
        """How many of an event about somebody were kept back since which time; the newest last."""
        self._lines = Allowance(LINES_BURST, LINES_PER_S)
        self._notes = Allowance(NOTES_BURST, NOTES_PER_S)

    def complain(self, event: str, about: str, fields: dict[str, object], now: float) -> None:
        """Write it down, or count it for when it is written down again."""
        count, since = self._said.pop((event, about), (0, -COMPLAINT_S))
        if now >= since + COMPLAINT_S and self._lines.take(event, 1, now):
            self._journal.write(event, peer=about, kept_back=count, **fields)
            count, since = -1, now
        self._said[event, about] = count + 1, since
        if len(self._said) > COMPLAINTS_MAX:
            del self._said[next(iter(self._said))]

    def note(self, author: PeerId | None, text: str, now: float) -> None:
        """A note of the ledger, to which the word of `author` led, or our own."""
        if author is None or (
            self._notes.take(author, 1, now) and self._lines.take("note", 1, now)
        ):
            self._journal.write("note", text=text)
        else:
            self.complain("notes-kept-back", author, {}, now)
