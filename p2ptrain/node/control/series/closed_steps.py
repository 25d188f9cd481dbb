"""Follow the ledger's chain, and name what each outer step consisted of once it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.values import Branch, Commit, Heal, Participant, Roster
from p2ptrain.ledger.history.kept_chain import KeptChain


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """An outer step that the ledger has ended. `step` is the number of outer steps after it."""

    step: int
    attempt: int
    """The number of the last attempt; 0 for the first."""
    skipped: bool
    members: tuple[PeerId, ...]
    participants: tuple[Participant, ...]
    """The peers whose work is in the update; none if the step was skipped."""
    tokens_total: int
    """Committed tokens of the run up to and including this step."""

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.participants)


class ClosedSteps:
    """Reads a chain that grows at its end and may be pruned at its beginning."""

    def __init__(self, kept: KeptChain) -> None:
        self._kept = kept
        self._begin()

    def _begin(self) -> None:
        start = self._kept.start
        self._height, self._tokens = start.height, start.tokens
        self._members = (*start.voters, *start.learners)
        self._open = () if start.roster is None else start.roster.participants
        self._attempt = 0 if start.roster is None else start.roster.attempt

    def new(self) -> Iterator[ClosedStep]:
        """Yield the outer steps that have ended since the last call, oldest first."""
        if self._height < self._kept.start.height:
            self._begin()
        for certified in self._kept.entries[self._height - self._kept.start.height :]:
            value = certified.entry.value
            self._height = certified.entry.height
            if isinstance(value, Roster):
                self._members = (*value.voters, *value.learners)
                self._open, self._attempt = value.participants, value.attempt
            elif isinstance(value, Branch | Heal | Verdict):
                self._open = ()
            else:
                took_part = self._open if isinstance(value, Commit) else ()
                self._tokens += sum(each.tokens for each in took_part)
                yield ClosedStep(
                    value.step + 1,
                    self._attempt,
                    not isinstance(value, Commit),
                    self._members,
                    took_part,
                    self._tokens,
                )
                self._open = ()
