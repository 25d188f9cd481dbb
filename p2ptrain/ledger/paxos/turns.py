"""Decide how long the turn of a proposer lasts, and who may end it early.

A proposer that says nothing costs everybody a whole round. Rotation brings it back once in as many
heights as there are voters, so one silent voter of six doubled the time of a short outer step. So a
node remembers which proposers let their turn pass, and gives them little time. Losing a turn harms
nobody: the next proposer proposes the same. Safety does not depend on any of this, because a round
may begin at any time (SPEC.md, "Liveness").
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.timers import RoundTimer

TARDY_PART = 1 / 16
"""The turn of a tardy proposer, as a part of a round: 0.125 s of 2 s. A proposer nearby can use it.
One behind a slow line cannot, and then the next proposer begins a moment later.
"""

TARDY_HEIGHTS = 256
"""Heights for which a proposer stays tardy, unless a round of its own decides before. A silent
voter then costs the others one round in 256 heights: 1 % of the time if an outer step takes 1.5 s.
"""


SHORT_TURNS = 2
"""Short turns of one voter in a height. One is its own by rotation. It can get another by preparing
a later round of its own before the time (`is_hurried_by`)."""


TARDY_VOTERS = 3
"""One voter in so many may be tardy. If more turns lapse, the network is slow, or liars end rounds
early, and the memory says nothing about proposers. With short turns for all of them, voters lost
step with each other, and a simulated run stood still."""


@dataclass(slots=True)
class Tardiness:
    """For each proposer that let its turn pass, the height from which it is forgiven."""

    until: dict[PeerId, int] = field(default_factory=dict)

    def decided(self, round: int, turns: Turns) -> None:
        """The height of `turns` was decided in `round`."""
        height = turns.electorate.height
        self.until = {peer: until for peer, until in self.until.items() if until > height}
        if are_few(turns.lapsed, turns.electorate):
            self.until |= dict.fromkeys(turns.lapsed, height + TARDY_HEIGHTS)
        self.until.pop(turns.electorate.proposer(round), None)

    def at(self, height: int) -> frozenset[PeerId]:
        return frozenset(peer for peer, until in self.until.items() if until > height)


def are_few(tardy: AbstractSet[PeerId], electorate: Electorate) -> bool:
    return len(tardy & electorate.names) * TARDY_VOTERS <= len(electorate.voters)


class Turns:
    """The turns of one height. `lapsed` are the other proposers whose turn ended here without a
    decision.

    Of each voter SHORT_TURNS turns are shortened at most, and none if too many are tardy.
    """

    def __init__(self, electorate: Electorate, tardy: frozenset[PeerId] = frozenset()) -> None:
        self.tardy = tardy if are_few(tardy, electorate) else frozenset()
        self.lapsed: set[PeerId] = set()
        self.electorate = electorate
        self._timer = RoundTimer(electorate.rules.round_timeout_s)
        self._shortened: dict[PeerId, int] = {}
        self._is_short = False
        self._hurried_at: dict[PeerId, float] = {}

    @property
    def ends_at(self) -> float | None:
        """When the turn under way ends; None if nothing waits to be decided."""
        return self._timer.deadline

    def begin(self, round: int, now: float) -> None:
        """Start the timer of `round`, unless it runs."""
        if self._timer.deadline is not None:
            return
        proposer = self.electorate.proposer(round)
        self._is_short = proposer in self.tardy and self._shortened.get(proposer, 0) < SHORT_TURNS
        if not self._is_short:
            return self._timer.start(now)
        self._shortened[proposer] = self._shortened.get(proposer, 0) + 1
        self._timer.deadline = now + TARDY_PART * self.electorate.rules.round_timeout_s

    def expired(self, now: float) -> bool:
        """Return whether the turn under way is over. If so, stop its timer."""
        if not self._timer.expired(now):
            return False
        self._timer.stop()
        return True

    def lapse(self, round: int) -> None:
        """Note that the turn of `round` is over and nothing was decided. Short turns do not make
        later ones longer.
        """
        self._timer.timeouts += not self._is_short
        self.lapsed |= {self.electorate.proposer(round)} - {self.electorate.me}

    def stop(self) -> None:
        self._timer.stop()

    def is_hurried_by(self, sender: PeerId, now: float) -> bool:
        """Return whether `sender` ends a turn early and may not. Note the time if it may.

        Between two such times there must be enough rounds for every voter to have a turn.
        Otherwise one voter could keep all others from deciding (SPEC.md, "Liveness"). Tardy
        proposers are no exception: voters disagree on who is tardy, and an honest one whose rounds
        are refused by those that must answer would hold up the others.
        """
        if self._timer.is_nearly_over(now):
            return False
        pause_s = len(self.electorate.voters) * self._timer.round_s
        if now < self._hurried_at.get(sender, -pause_s) + pause_s:
            return True
        self._hurried_at[sender] = now
        return False
