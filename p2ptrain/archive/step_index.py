"""The ledger's chain, indexed by outer step: the entry that ended a step, and its participants.

The index grows with the chain, so that a newcomer's replay can look up every step quickly. When the
chain is pruned, the index forgets the same steps, so its memory is bounded.
"""

from __future__ import annotations

from p2ptrain.archive.update_format import ReduceShape
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.values import (
    Branch,
    Certified,
    Commit,
    Heal,
    Participant,
    Roster,
    Schedule,
)
from p2ptrain.ledger.history.kept_chain import KeptChain


class StepIndex:
    """The index of one chain. `kept` is the ledger's own chain, which grows at its end and may be
    pruned at its beginning.
    """

    def __init__(self, kept: KeptChain) -> None:
        self._kept = kept
        self._closing: dict[int, Certified] = {}
        self._participants: dict[int, tuple[Participant, ...]] = {}
        self._reduces: dict[int, ReduceShape] = {}
        self._arranged: tuple[Schedule, tuple[PeerId, ...]] = ("ring", ())
        self._certified_step = 0
        self._begin()

    def _begin(self) -> None:
        roster = self._kept.start.roster
        self._height = self._kept.start.height
        self._certified_step = self._kept.start.step
        self._open = () if roster is None else roster.participants
        if roster is not None:
            self._arranged = roster.schedule, roster.peers

    def _follow(self) -> None:
        start = self._kept.start
        for step in [step for step in self._closing if step < start.step]:
            del self._closing[step], self._participants[step]
            self._reduces.pop(step, None)
        if self._height < start.height:
            self._begin()
        for certified in self._kept.entries[self._height - start.height :]:
            value = certified.entry.value
            if isinstance(value, Roster):
                self._open = value.participants
                if value.participants:
                    self._arranged = value.schedule, value.peers
            elif isinstance(value, Branch | Heal | Verdict):
                self._open = ()
            else:
                took_part = self._open if isinstance(value, Commit) else ()
                self._closing[value.step] = certified
                self._participants[value.step] = took_part
                if isinstance(value, Commit):
                    self._reduces[value.step] = ReduceShape(self._arranged[0], len(took_part))
                self._open = ()
                if isinstance(value, Commit) and value.snapshot is not None:
                    self._certified_step = value.step
            self._height = certified.entry.height

    def closing(self, step: int) -> Certified:
        """Return the Commit or Skip that ended outer step `step`. The step must have ended and must
        not have been pruned.
        """
        self._follow()
        return self._closing[step]

    def participants(self, step: int) -> tuple[Participant, ...]:
        """Return the participants whose work is in the update of outer step `step`; () if the step
        was skipped.
        """
        self._follow()
        return self._participants[step]

    def reduce_of(self, step: int) -> ReduceShape:
        """Return the reduce that computed the update of outer step `step`, which must have been
        committed.
        """
        self._follow()
        return self._reduces[step]

    def newest_participants(self, step: int) -> tuple[Participant, ...]:
        """Return the participants of the newest committed outer step before `step`; () if none is
        known.
        """
        self._follow()
        newest_first = reversed(self._participants.items())
        return next((peers for each, peers in newest_first if each < step and peers), ())

    def certified_step(self) -> int:
        """Return the outer step of the newest Commit that certified a snapshot. Before the first
        such Commit, return the step at which the chain begins. Later steps are never pruned.
        """
        self._follow()
        return self._certified_step

    def certified_before(self, step: int) -> int:
        """Return what `certified_step` was when outer step `step` was the current one."""
        if self.certified_step() < step:
            return self._certified_step
        for earlier in range(step - 1, self._kept.start.step - 1, -1):
            value = self._closing[earlier].entry.value
            if isinstance(value, Commit) and value.snapshot is not None:
                return earlier
        return self._kept.start.step

    def last_arrangement(self) -> tuple[Schedule, tuple[PeerId, ...]]:
        """Return the schedule and the order of the last reduce; "ring" and () before the first
        reduce.
        """
        self._follow()
        return self._arranged
