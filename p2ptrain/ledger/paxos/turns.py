"""Decide how long a proposer's turn lasts, and which voters may end it early.

A silent proposer costs all voters a full round. With n voters, each proposes once in n heights, so
one silent voter of six doubled the duration of a short outer step. So a node remembers which
proposers did not use their turn, and gives them little time. Losing a turn does no harm: the next
proposer proposes the same value. Safety does not depend on any of this, because a round may begin
at any time (SPEC.md, "Liveness").
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.timers import RoundTimer

TARDY_PART = 1 / 16
"""The turn of a tardy proposer, as a fraction of a round: 0.125 s of 2 s. A proposer with a fast
connection can still propose in that time. If a proposer with a slow connection cannot, the next
proposer starts soon after.
"""

TARDY_HEIGHTS = 256
"""Number of heights for which a proposer stays tardy, unless one of its rounds decides earlier. A
silent voter then costs the others one round of 2 s in 256 heights. An outer step takes two heights,
so if it lasts 1.5 s, that is 2 s in 192 s, or 1 % of the time.
"""


SHORT_TURNS = 2
"""Maximum number of short turns of one voter at a height. One turn comes from rotation. The voter
can get a second one by preparing a later round of its own before the current turn has ended
(`is_hurried_by`)."""


TARDY_VOTERS = 3
"""At most one in this number of voters may count as tardy. If more turns lapse, the cause is a slow
network or liars that end rounds early, not tardy proposers. When all voters had short turns, voters
got out of step and a simulated run stalled.
"""


@dataclass(slots=True)
class Tardiness:
    """Remembers tardy proposers. `until` is, for each tardy proposer, the height from which it is
    no longer tardy.
    """

    until: dict[PeerId, int] = field(default_factory=dict)

    def decided(self, round: int, turns: Turns) -> None:
        """Note that the height of `turns` was decided in `round`."""
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
    """The turns of one height. `lapsed` are the proposers, except this node, whose turns ended
    without a decision.

    At most SHORT_TURNS turns of each voter are short. No turn is short if too many voters are
    tardy.
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
        """When the current turn ends; None if no decision is pending."""
        return self._timer.deadline

    def begin(self, round: int, now: float) -> None:
        """Start the timer of `round`, unless it is running."""
        if self._timer.deadline is not None:
            return
        proposer = self.electorate.proposer(round)
        self._is_short = proposer in self.tardy and self._shortened.get(proposer, 0) < SHORT_TURNS
        if not self._is_short:
            return self._timer.start(now)
        self._shortened[proposer] = self._shortened.get(proposer, 0) + 1
        self._timer.deadline = now + TARDY_PART * self.electorate.rules.round_timeout_s

    def expired(self, now: float) -> bool:
        """Return whether the current turn is over. If so, stop its timer."""
        if not self._timer.expired(now):
            return False
        self._timer.stop()
        return True

    def lapse(self, round: int) -> None:
        """Note that the turn of `round` ended without a decision. Short turns do not make later
        turns longer.
        """
        self._timer.timeouts += not self._is_short
        self.lapsed |= {self.electorate.proposer(round)} - {self.electorate.me}

    def stop(self) -> None:
        self._timer.stop()

    def is_hurried_by(self, sender: PeerId, now: float) -> bool:
        """Return whether `sender` is ending a turn early without being allowed to. If it is
        allowed, note the time.

        Between two such times there must be enough rounds for every voter to have a turn. Otherwise
        one voter could keep all others from deciding (SPEC.md, "Liveness"). A tardy `sender` is
        allowed to do so as often as any other. Voters disagree on which proposers are tardy, so
        some voters would refuse the rounds of an honest proposer that other voters do not consider
        tardy, and that proposer would hold up the others.
        """
        if self._timer.is_nearly_over(now):
            return False
        pause_s = len(self.electorate.voters) * self._timer.round_s
        if now < self._hurried_at.get(sender, -pause_s) + pause_s:
            return True
        self._hurried_at[sender] = now
        return False
