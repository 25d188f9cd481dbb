"""Rate-limit the journal lines that peers can cause: their faults must not fill our disk, nor push
earlier events out of the journal.

This module does not know what the events mean.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.observe.journal import Journal
from p2ptrain.rate_limit import Allowance

COMPLAINT_S = 10.0
"""Minimum seconds between two lines about one event and one peer."""
COMPLAINTS_MAX = 1024

NOTES_PER_S = 0.1
NOTES_BURST = 32
"""Limits on the ledger's notes that one peer's messages cause. The average rate is that of
complaints, but a burst is allowed, so that one incident can be logged completely."""

LINES_PER_S = 0.5
LINES_BURST = 256
"""Limits on events of one kind, summed over all peers, since one attacker may create any number of
identities. At this rate, lines of 260 bytes fill a journal of 32 MiB in three days."""


class MisbehaviourLog:
    """A rate-limited writer to the journal. `now` must never decrease."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._said: dict[tuple[str, str], tuple[int, float]] = {}
        """For each event and peer, the number of suppressed lines, and when the last line was
        written. The newest entry comes last."""
        self._lines = Allowance(LINES_BURST, LINES_PER_S)
        self._notes = Allowance(NOTES_BURST, NOTES_PER_S)

    def __len__(self) -> int:
        """Return the number of pairs of an event and a peer that are remembered."""
        return len(self._said)

    def complain(self, event: str, about: str, fields: dict[str, object], now: float) -> None:
        """Write the event `event` about the peer `about`. If a limit is reached, only count the
        event; the next line about this event and peer reports the count."""
        count, since = self._said.pop((event, about), (0, -COMPLAINT_S))
        if now >= since + COMPLAINT_S and self._lines.consume(event, 1, now):
            self._journal.write(event, peer=about, kept_back=count, **fields)
            count, since = -1, now
        self._said[event, about] = count + 1, since
        if len(self._said) > COMPLAINTS_MAX:
            del self._said[next(iter(self._said))]

    def note(self, author: PeerId | None, text: str, now: float) -> None:
        """Write a note of the ledger. `author` is the peer whose message caused the note, or None
        if this node itself caused it; such notes are not limited."""
        if author is None or (
            self._notes.consume(author, 1, now) and self._lines.consume("note", 1, now)
        ):
            self._journal.write("note", text=text)
        else:
            self.complain("notes-kept-back", author, {}, now)
